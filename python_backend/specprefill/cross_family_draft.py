# SPDX-License-Identifier: Apache-2.0
"""The same prompt for a draft whose tokenizer is another than the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.chat_template import ChatTemplate, Content, RenderedChat
from specprefill.cross_family import SharedText, overlapping_draft_tokens
from specprefill.errors import InvalidRequestError
from specprefill.messages import Conversation
from specprefill.tokenizer import Offsets, tokenise, tokenise_with_literals


@dataclass(frozen=True, slots=True)
class DraftPrompt:
    """What the draft reads.

    Attributes:
        ids: int32 [D].
        ranges: int32 [M, 2], half-open range of draft tokens per target token.
        unshared: contents of the target's prompt that the draft's has not; they get no score.
    """

    ids: npt.NDArray[np.int32]
    ranges: npt.NDArray[np.int32]
    unshared: tuple[Content, ...] = ()


class CrossFamilyDraft:
    """Writes prompts in the draft's own tokens and its own chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Keep the draft's tokenizer."""
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)

    def encode_text(self, text: str, offsets: Offsets) -> DraftPrompt:
        """Tokenise a raw prompt.

        Args:
            text: the prompt.
            offsets: int64 [M, 2], character spans of the target's tokens.
        """
        return self._read_as_text(text, offsets, add_special_tokens=True)

    def encode_chat(
        self, conversation: Conversation, target: RenderedChat, offsets: Offsets
    ) -> DraftPrompt:
        """Render messages with the draft's template and find the contents in both prompts.

        A draft without a template, or whose template refuses the messages, reads the target's
        prompt as text.

        Args:
            conversation: the messages.
            target: what the target's template made of them.
            offsets: int64 [M, 2], character spans of the target's tokens in that text.
        """
        try:
            draft = self._template.render(conversation, allow_ignored=True)
        except InvalidRequestError:
            return self._read_as_text(target.text, offsets, add_special_tokens=False)
        ids, draft_offsets = tokenise_with_literals(self._tokenizer, draft.text, draft.literals)
        places: dict[int, list[Content]] = {}
        for content in draft.contents:
            places.setdefault(content.message, []).append(content)
        shared, unshared = [], []
        for content in target.contents:
            text = target.text[content.start : content.end]
            equal = [
                place
                for place in places.get(content.message, ())
                if draft.text[place.start : place.end] == text
            ]
            if equal:
                shared.append(SharedText(content.start, content.end, equal[0].start))
            else:
                unshared.append(content)
        ranges = overlapping_draft_tokens(target.text, offsets, draft_offsets, shared)
        return DraftPrompt(ids, ranges, tuple(unshared))

    def _read_as_text(self, text: str, offsets: Offsets, add_special_tokens: bool) -> DraftPrompt:
        ids, draft_offsets = tokenise(self._tokenizer, text, add_special_tokens)
        whole = (SharedText(0, len(text), 0),)
        return DraftPrompt(ids, overlapping_draft_tokens(text, offsets, draft_offsets, whole))
