# SPDX-License-Identifier: Apache-2.0
"""Explainer: runs tokenizer and draft, and the target when asked, to explain one prompt."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.embedded_model import resolve_model
from specprefill.engines import make_draft, make_generator, make_prompt_encoder, speculator_of
from specprefill.errors import InvalidRequestError
from specprefill.explain.explanation import Explanation, ShownAnswer
from specprefill.explain.layer_profile import ProfilingDraft
from specprefill.explain.prompt_text import find_text
from specprefill.generator import Generator
from specprefill.prompt import Prompt
from specprefill.records import Record, make_record, replay
from specprefill.selection import keep_all
from specprefill.settings import Settings
from specprefill.tokenizer import load_tokenizer

Progress = Callable[[str], Any]


def _quiet(_: str) -> None:
    """Tell nobody."""


class Explainer:
    """Explains prompts of one deployment; loads only what an explanation needs."""

    def __init__(self, settings: Settings, progress: Progress = _quiet) -> None:
        """Load the tokenizer.

        Args:
            settings: the deployment.
            progress: told what is being done.

        Raises:
            ConfigurationError: the deployment cannot work as configured.
        """
        self._settings = settings
        self._progress = progress
        progress("loading the tokenizer")
        self._encoder = make_prompt_encoder(settings)
        folder = resolve_model(settings.target.model)
        self._tokenizer = load_tokenizer(folder, settings.trust_remote_code)

    def explain(
        self,
        title: str,
        text: str | None = None,
        messages: str | None = None,
        selection: Mapping[str, Any] | None = None,
    ) -> Explanation:
        """Let the draft score a prompt, and keep all that is known about it.

        Args:
            title: what to call the prompt.
            text: the raw prompt; or
            messages: chat messages as JSON.
            selection: overrides of the selection settings.

        Raises:
            SpecPrefillError: bad input, or a deployment that cannot work.
        """
        chosen = self._settings.selection.for_request(selection or {})
        prompt = self._encoder.encode(
            text,
            messages,
            verbatim_guard=chosen.verbatim_guard,
            protect_last_user_tokens=chosen.protect_last_user_tokens,
        )
        self._progress("loading the draft")
        draft = ProfilingDraft(make_draft(self._settings))
        try:
            self._progress(f"the draft reads {len(prompt.token_ids):,} tokens")
            speculation = speculator_of(draft, self._settings).speculate(prompt, chosen)
        finally:
            draft.close()
        by_layer = {}
        for layer in draft.layers if speculation.importance is not None else ():
            alone = speculator_of(draft.only(layer), self._settings).speculate(prompt, chosen)
            if alone.selection.chunk_scores is not None:
                by_layer[layer] = alone.selection.chunk_scores
        return Explanation(
            title,
            make_record(prompt, speculation, chosen, self._settings.draft.model, with_ids=True),
            find_text(self._tokenizer, prompt.token_ids, text),
            None if messages is None else prompt.role_spans,
            speculation.importance,
            by_layer,
        )

    def explain_record(
        self, title: str, record: Record, text: str | None = None, messages: str | None = None
    ) -> Explanation:
        """Show a saved selection; no draft runs.

        Args:
            title: what to call the prompt.
            record: the saved selection.
            text: the raw prompt; or
            messages: chat messages as JSON; neither if the record holds the prompt's token ids.

        Raises:
            RecordError: the record belongs to another prompt.
            InvalidRequestError: the prompt is neither given nor in the record.
        """
        if text is None and messages is None:
            if record.prompt_ids is None:
                raise InvalidRequestError(
                    "record",
                    "it was written with records.content hashes and holds no prompt",
                    "the prompt file or --messages beside it",
                )
            prompt = Prompt(np.asarray(record.prompt_ids, dtype=np.int32))
            self._check_vocabulary(prompt.token_ids)
        else:
            prompt = self._encoder.encode(text, messages)
        replay(record, prompt.token_ids)  # raises if it is another prompt
        return Explanation(
            title,
            replace(record, prompt_ids=prompt.token_ids.tolist()),
            find_text(self._tokenizer, prompt.token_ids, text),
            None if messages is None else prompt.role_spans,
        )

    def answer(
        self, explanation: Explanation, dense: bool = True, max_tokens: int | None = None
    ) -> Explanation:
        """Let the target answer from the kept tokens, and from all of them.

        Args:
            explanation: of a prompt that this explainer explained.
            dense: answer from all tokens as well.
            max_tokens: length of the answers at most; None takes the deployment's.

        Raises:
            SpecPrefillError: the target cannot be loaded, or failed.
        """
        record = explanation.record
        ids = np.asarray(record.prompt_ids, dtype=np.int32)
        overrides = {} if max_tokens is None else {"max_tokens": max_tokens}
        sampling = self._settings.sampling.for_request(overrides)
        selections = {"sparse": replay(record, ids)}
        if dense:
            selections = {"dense": keep_all(len(ids), "dense"), **selections}
        self._progress("loading the target")
        generator, engine = make_generator(self._settings)
        answers = []
        try:
            for name, selection in selections.items():
                self._progress(f"the target answers from {len(selection.kept):,} tokens")
                answers.append(_answer(generator, name, ids, selection.kept, sampling))
        finally:
            engine.close()
        return replace(explanation, answers=answers)

    def _check_vocabulary(self, token_ids: npt.NDArray[np.int32]) -> None:
        if int(token_ids.max()) >= len(self._tokenizer):
            raise InvalidRequestError(
                "record",
                f"its prompt has token {int(token_ids.max())}, beyond the model's vocabulary",
                "the configuration that it was recorded with",
            )


def _answer(
    generator: Generator,
    name: str,
    ids: npt.NDArray[np.int32],
    kept: npt.NDArray[np.int32],
    sampling: Any,
) -> ShownAnswer:
    pieces = list(generator.generate(uuid.uuid4().hex, ids[kept], kept, len(ids), sampling))
    text = "".join(piece.text for piece in pieces)
    return ShownAnswer(name, text.strip(), len(kept), pieces[0].prefill_ms)
