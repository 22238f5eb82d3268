# SPDX-License-Identifier: Apache-2.0
"""Difference -> a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from specprefill.explain.difference import Difference, DifferentSpan

_LISTED_SPANS = 12
_SNIPPET = 160


def difference_table(difference: Difference) -> Group:
    """Return the numbers, the settings that differ, and the first spans of each side."""
    numbers = Table(title="Two selections of one prompt")
    for column in ("", "A", "B"):
        numbers.add_column(column, justify="right" if column else "left")
    total = difference.prompt_tokens
    for label, a, b in (
        ("prompt tokens", total, total),
        ("kept", difference.kept_a, difference.kept_b),
        ("kept by both", difference.kept_by_both, difference.kept_by_both),
        (
            "kept by this one alone",
            difference.kept_a - difference.kept_by_both,
            difference.kept_b - difference.kept_by_both,
        ),
    ):
        numbers.add_row(label, f"{a:,}", f"{b:,}")
    numbers.add_row("Jaccard overlap", f"{difference.jaccard:.3f}", "")
    for name, (a, b) in difference.settings.items():
        numbers.add_row(name, escape(str(a)), escape(str(b)))
    tables = [numbers]
    for name, spans in (("A", difference.only_a), ("B", difference.only_b)):
        if spans:
            tables.append(_spans_table(name, spans))
    return Group(*tables)


def _spans_table(name: str, spans: Sequence[DifferentSpan]) -> Table:
    shown = spans[:_LISTED_SPANS]
    more = f", the first {len(shown)} of {len(spans):,}" if len(shown) < len(spans) else ""
    table = Table(title=f"Only in {name}{more}", show_lines=True)
    table.add_column("tokens", no_wrap=True)
    table.add_column("text")
    for span in shown:
        text = "(not in the files)" if span.text is None else " ".join(span.text.split())
        text = text if len(text) <= _SNIPPET else f"{text[:_SNIPPET]}…"
        table.add_row(f"{span.start:,} to {span.end - 1:,}", escape(text))
    return table
