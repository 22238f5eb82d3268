# SPDX-License-Identifier: Apache-2.0
"""What two selections of the same prompt keep differently."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specprefill.errors import RecordError
from specprefill.explain import EXPLANATION_FORMAT, EXPLANATION_VERSION
from specprefill.explain.prompt_text import PromptText
from specprefill.records import Record, parse_record
from specprefill.selection import runs


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two selections.

    Attributes:
        record: the selection.
        text: the prompt's text, if the file has it.
    """

    record: Record
    text: PromptText | None


@dataclass(frozen=True, slots=True)
class DifferentSpan:
    """Consecutive tokens that only one of the two keeps.

    Attributes:
        start: first token.
        end: one behind the last token.
        text: their text, if either file has it.
    """

    start: int
    end: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The comparison.

    Attributes:
        prompt_tokens: M.
        kept_a: number of tokens that A keeps.
        kept_b: number of tokens that B keeps.
        kept_by_both: number of tokens that both keep.
        jaccard: tokens kept by both, divided by tokens kept by either; 1 if they are the same.
        only_a: what only A keeps.
        only_b: what only B keeps.
        settings: name -> (value in A, value in B) of the settings that differ.
    """

    prompt_tokens: int
    kept_a: int
    kept_b: int
    kept_by_both: int
    jaccard: float
    only_a: Sequence[DifferentSpan]
    only_b: Sequence[DifferentSpan]
    settings: dict[str, tuple[Any, Any]]

    @property
    def same(self) -> bool:
        """Whether both keep the same tokens."""
        return not self.only_a and not self.only_b

    def to_json(self) -> dict[str, Any]:
        """Return the comparison for tools."""
        return {"same": self.same, **asdict(self)}


def read_side(path: Path) -> Side:
    """Read a selection record, or what `specprefill explain --json` wrote.

    Raises:
        RecordError: the file cannot be read or holds neither; names the field.
    """
    try:
        data = path.read_bytes()
        values = json.loads(data)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: no valid JSON: {error}") from error
    try:
        if not isinstance(values, dict) or values.get("format") != EXPLANATION_FORMAT:
            return Side(parse_record(data), None)
        if values.get("version") != EXPLANATION_VERSION:
            raise RecordError(
                f"version: got {values.get('version')!r}; allowed: {EXPLANATION_VERSION}"
            )
        record = parse_record(json.dumps(values.get("record")).encode())
        return Side(record, _read_text(values, record.prompt_tokens))
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def compare(a: Side, b: Side) -> Difference:
    """Compare what two selections keep.

    Raises:
        RecordError: they are of different prompts.
    """
    ours, theirs = a.record, b.record
    if ours.prompt_sha256 != theirs.prompt_sha256 or ours.prompt_tokens != theirs.prompt_tokens:
        raise RecordError(
            f"prompt_sha256: the two are of different prompts ({ours.prompt_tokens} and "
            f"{theirs.prompt_tokens} tokens); allowed: two selections of one prompt"
        )
    kept_a, kept_b = _tokens(ours), _tokens(theirs)
    text = a.text or b.text
    both, either = np.intersect1d(kept_a, kept_b).size, np.union1d(kept_a, kept_b).size
    names = sorted(ours.settings.keys() | theirs.settings.keys())
    values = {name: (ours.settings.get(name), theirs.settings.get(name)) for name in names}
    return Difference(
        ours.prompt_tokens,
        kept_a.size,
        kept_b.size,
        both,
        both / either,
        _spans(np.setdiff1d(kept_a, kept_b), text),
        _spans(np.setdiff1d(kept_b, kept_a), text),
        {name: pair for name, pair in values.items() if pair[0] != pair[1]},
    )


def _read_text(values: dict[str, Any], prompt_tokens: int) -> PromptText:
    text, lengths = values.get("text"), values.get("token_characters")
    if not isinstance(text, str):
        raise RecordError("text: missing; allowed: the prompt's text")
    if (
        not isinstance(lengths, list)
        or len(lengths) != prompt_tokens
        or not all(type(n) is int and 0 <= n <= len(text) for n in lengths)
        or sum(lengths) != len(text)
    ):
        raise RecordError(
            f"token_characters: allowed: {prompt_tokens} integers from 0 whose sum is the length "
            f"of text, {len(text)}"
        )
    return PromptText(text, np.append(0, np.cumsum(lengths, dtype=np.int64)))


def _tokens(record: Record) -> np.ndarray:
    return np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in record.kept])


def _spans(tokens: np.ndarray, text: PromptText | None) -> list[DifferentSpan]:
    return [
        DifferentSpan(start, end, None if text is None else text.part(start, end))
        for start, end in runs(tokens)
    ]
