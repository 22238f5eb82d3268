# SPDX-License-Identifier: Apache-2.0
"""Cause: in one word, why a prompt was or was not pruned."""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    """The label of a selection's reason, for counting."""

    PRUNED = "pruned"
    KEEP_ALL = "keep_all"
    SHORT = "short"
    PROTECTED = "protected"
    GUARD = "guard"
    BREAK_EVEN = "break_even"
    DRAFT_FAILED = "draft_failed"
