# SPDX-License-Identifier: Apache-2.0
"""Sample: one prompt whose answer is known."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt and how its answer is judged.

    Attributes:
        name: unique within a run.
        task: the class of prompts it belongs to; results are reported per task.
        prompt: what the user says, or the raw text if `chat` is False.
        answers: expected answers.
        metric: name in `metrics.METRICS`.
        max_tokens: longest answer.
        chat: send it through the model's chat template.
        evidence: exact pieces of `prompt` that hold the answer; empty if unknown.
        classes: every label there is, for classification.
        first_line: only the answer's first line counts.
        length: tokens that were asked for, or the data set's own length.
    """

    name: str
    task: str
    prompt: str
    answers: tuple[str, ...]
    metric: str
    max_tokens: int
    chat: bool = True
    evidence: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    first_line: bool = False
    length: int = 0

    @property
    def messages(self) -> str | None:
        """The chat messages as JSON, or None for raw text."""
        return json.dumps([{"role": "user", "content": self.prompt}]) if self.chat else None

    @property
    def text(self) -> str | None:
        """The raw text, or None for chat messages."""
        return None if self.chat else self.prompt
