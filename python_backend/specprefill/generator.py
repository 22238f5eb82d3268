# SPDX-License-Identifier: Apache-2.0
"""Generator: selection -> streamed text, through the target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.errors import InvalidRequestError
from specprefill.settings import SamplingSettings
from specprefill.target.base import FinishReason, GenerationRequest, TargetEngine
from specprefill.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some text of an answer.

    Attributes:
        text: whole characters; may be empty only on the first and the last piece.
        token_ids: tokens taken in since the piece before.
        log_probs: their log probabilities.
        finish_reason: set on the last piece.
        queue_ms: on the first piece, time the request waited for the target.
        prefill_ms: on the first piece, time of the target's prefill.
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0


class Generator:
    """Runs requests on the target and turns their tokens into text."""

    def __init__(self, target: TargetEngine, tokenizer: Any) -> None:
        """Use a target engine and its fast tokenizer."""
        self._target = target
        self._tokenizer = tokenizer

    def generate(
        self,
        request_id: str,
        token_ids: npt.NDArray[np.int32],
        position_ids: npt.NDArray[np.int32],
        prompt_length: int,
        sampling: SamplingSettings,
        stop_strings: Sequence[str] = (),
        bad_words: Sequence[str] = (),
        end_id: int | None = None,
    ) -> Iterator[TextPiece]:
        """Continue a prompt; the request is queued before this returns.

        Args:
            request_id: unique among the requests in flight.
            token_ids: int32 [K], the kept tokens.
            position_ids: int32 [K], their positions in the prompt.
            prompt_length: M.
            sampling: how tokens are chosen, and how many.
            stop_strings: the answer ends before the first of these.
            bad_words: words that are never generated.
            end_id: stop token to use in place of the model's own.

        Returns:
            Pieces as they come; closing the iterator cancels the request. The first piece comes
            with the first token, whether or not its text is complete.

        Raises:
            SpecPrefillError: as `TargetEngine.submit`.
        """
        if end_id is not None and not 0 <= end_id < len(self._tokenizer):
            allowed = f"integer from 0 up to {len(self._tokenizer) - 1}"
            raise InvalidRequestError("end_id", f"got {end_id}", allowed)
        stop_ids = self._target.stop_token_ids if end_id is None else frozenset((end_id,))
        request = GenerationRequest(
            request_id,
            token_ids,
            position_ids,
            prompt_length,
            sampling,
            stop_ids,
            self._bad_token_sequences(bad_words),
        )
        steps = self._target.submit(request)
        return self._pieces(steps, stop_strings)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text of each token by itself; parts of characters become U+FFFD."""
        return [self._tokenizer.decode([token]) for token in token_ids]

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """Return the text of token ids, int32 [n], without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _bad_token_sequences(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        # A word has other tokens at the start of a text than behind a space.
        spellings = {spelling for word in words if word for spelling in (word, f" {word}")}
        encoded = (self._tokenizer(s, add_special_tokens=False).input_ids for s in spellings)
        return tuple(sorted({tuple(ids) for ids in encoded if ids}))

    def _pieces(self, steps: Iterator[Any], stop_strings: Sequence[str]) -> Iterator[TextPiece]:
        stream = TextStream(self._tokenizer, stop_strings)
        tokens: list[int] = []
        log_probs: list[float] = []
        first = True
        with contextlib.closing(steps):  # type: ignore[type-var]
            for step in steps:
                text = ""
                if step.token_id is not None:
                    tokens.append(step.token_id)
                    log_probs.append(step.log_prob)
                    text = stream.push(step.token_id)
                reason = FinishReason.STOP if stream.stopped else step.finish_reason
                if reason is not None:
                    text += stream.finish()
                if text or first or reason is not None:
                    yield TextPiece(
                        text,
                        tuple(tokens),
                        tuple(log_probs),
                        reason,
                        step.queue_ms,
                        step.prefill_ms,
                    )
                    tokens, log_probs, first = [], [], False
                if reason is not None:
                    return
