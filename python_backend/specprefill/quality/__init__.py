# SPDX-License-Identifier: Apache-2.0
"""Measured quality: prompts with known answers, dense against every way of pruning them."""
