# SPDX-License-Identifier: Apache-2.0
"""Pipeline: the three steps in one process, without Triton."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specprefill.engines import make_generator, make_prompt_encoder, make_speculator
from specprefill.generator import TextPiece
from specprefill.prompt import Prompt
from specprefill.records import Record, replay
from specprefill.settings import Settings
from specprefill.speculator import Speculation


@dataclass(slots=True)
class Generation:
    """One request under way; iterate over `pieces` to drive it.

    Attributes:
        prompt: the tokenised prompt.
        speculation: what was kept, and why.
        pieces: the answer as it comes.
    """

    prompt: Prompt
    speculation: Speculation
    pieces: Iterator[TextPiece]


class Pipeline:
    """The same steps as the Triton ensemble, for tests, benchmarks and notebooks."""

    def __init__(self, settings: Settings) -> None:
        """Load tokenizer, draft and target.

        Raises:
            ConfigurationError: the deployment cannot work as configured.
        """
        self._settings = settings
        self._encoder = make_prompt_encoder(settings)
        self._speculator = make_speculator(settings)
        self._generator, self._target = make_generator(settings)

    def start(
        self,
        text: str | None = None,
        messages: str | None = None,
        selection: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        stop_strings: Sequence[str] = (),
        record: Record | None = None,
    ) -> Generation:
        """Tokenise, speculate and queue one request.

        Args:
            text: the raw prompt; or
            messages: chat messages as JSON.
            selection: overrides of the selection settings.
            sampling: overrides of the sampling settings.
            stop_strings: the answer ends before the first of these.
            record: selection to use in place of the draft's; `selection` then decides nothing.

        Raises:
            RecordError: the record belongs to another prompt.
            SpecPrefillError: bad input, or a failing target.
        """
        chosen_selection = self._settings.selection.for_request(selection or {})
        chosen_sampling = self._settings.sampling.for_request(sampling or {})
        prompt = self._encoder.encode(
            text,
            messages,
            chosen_sampling.max_tokens,
            verbatim_guard=chosen_selection.verbatim_guard,
            protect_last_user_tokens=chosen_selection.protect_last_user_tokens,
        )
        if record is None:
            speculation = self._speculator.speculate(prompt, chosen_selection)
        else:
            speculation = Speculation(replay(record, prompt.token_ids))
        kept = speculation.selection.kept
        pieces = self._generator.generate(
            uuid.uuid4().hex,
            prompt.token_ids[kept],
            kept,
            len(prompt.token_ids),
            chosen_sampling,
            stop_strings,
        )
        return Generation(prompt, speculation, pieces)

    def generate(self, text: str | None = None, **options: Any) -> str:
        """Return a whole answer; arguments as for `start`."""
        return "".join(piece.text for piece in self.start(text, **options).pieces)

    def time_to_first_token(
        self, text: str | None = None, **options: Any
    ) -> tuple[float, Generation]:
        """Return the seconds from call to first token, and the generation to go on with."""
        started = time.perf_counter()
        generation = self.start(text, **options)
        next(generation.pieces)
        return time.perf_counter() - started, generation

    def close(self) -> None:
        """Stop the target engine."""
        self._target.close()
