# SPDX-License-Identifier: Apache-2.0
"""Scoring rules: which queries are observed, and how their attention becomes importance."""

from specprefill.scoring.rule import ScoringRule, make_rule

__all__ = ["ScoringRule", "make_rule"]
