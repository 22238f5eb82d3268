# SPDX-License-Identifier: Apache-2.0
"""Text or chat messages -> prompt token ids, with what selection has to know about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.borders import token_borders
from specprefill.chat_template import ChatTemplate, Content
from specprefill.cross_family_draft import CrossFamilyDraft, DraftPrompt
from specprefill.errors import InvalidRequestError
from specprefill.keep_spans import parse_keep_spans
from specprefill.messages import ROLES, Conversation, parse_conversation
from specprefill.selection import Span
from specprefill.tokenizer import (
    Offsets,
    tokenise,
    tokenise_with_literals,
    tokens_touching,
    tokens_within,
)
from specprefill.verbatim_guard import (
    INSTRUCTION_CHARACTERS,
    VERBATIM_REASON,
    asks_for_verbatim_copy,
)

# What pruning may drop; everything else a chat template renders is control text.
_PRUNABLE_ROLES = frozenset(("user", "assistant", "tool"))
# Of a long last user turn that is not the last message; as the last one, protect_last covers it.
_LONG_TURN_TAIL = 64


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt.

    Attributes:
        token_ids: int32 [M].
        protected: half-open token spans that must be kept (template control text, system prompt).
        role_spans: (start, end, index into ROLES) of each message's content, in token order.
        borders: uint8 [M], what begins at a token: 0 nothing, 1 a sentence, 2 a line.
        dense_reason: why this prompt must not be pruned; empty if it may be.
        draft_ids: int32 [D], the prompt in the draft's own tokens if its tokenizer is another.
        draft_ranges: int32 [M, 2], half-open range of draft tokens that each token overlaps.
    """

    token_ids: npt.NDArray[np.int32]
    protected: tuple[Span, ...] = ()
    role_spans: tuple[tuple[int, int, int], ...] = ()
    borders: npt.NDArray[np.uint8] | None = None
    dense_reason: str = ""
    draft_ids: npt.NDArray[np.int32] | None = None
    draft_ranges: npt.NDArray[np.int32] | None = None


class PromptEncoder:
    """Turns a request's text or messages into a prompt that fits the context."""

    def __init__(
        self, tokenizer: Any, context_length: int, draft_tokenizer: Any | None = None
    ) -> None:
        """Read the tokenizers.

        Args:
            tokenizer: the target's.
            context_length: longest prompt + answer that the target can hold.
            draft_tokenizer: the draft's, if it is another.
        """
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._template = ChatTemplate(tokenizer)
        self._control_ids = _control_ids(tokenizer)  # [c]
        self._draft = None if draft_tokenizer is None else CrossFamilyDraft(draft_tokenizer)

    def encode(
        self,
        text: str | None,
        messages: str | None,
        max_tokens: int = 1,
        *,
        keep_spans: str | None = None,
        verbatim_guard: bool = False,
        protect_last_user_tokens: int = 256,
    ) -> Prompt:
        """Tokenise exactly one of text and messages.

        Args:
            text: the raw prompt.
            messages: JSON, a list of OpenAI messages or an object with `messages` and `tools`;
                the chat template is applied.
            max_tokens: tokens to generate, which must fit behind the prompt.
            keep_spans: JSON list of [start, end] characters of `text` that must be kept.
            verbatim_guard: mark prompts dense that ask for their own text back.
            protect_last_user_tokens: a last user turn of at most this many tokens is protected.

        Raises:
            InvalidRequestError: names the field, its problem and what is allowed.
        """
        if text is not None and messages is not None:
            raise InvalidRequestError(
                "messages", "text_input is set as well", "either text_input or messages"
            )
        if messages is not None:
            if keep_spans is not None:
                raise InvalidRequestError(
                    "keep_spans", "set together with messages", "only together with text_input"
                )
            conversation = parse_conversation(messages)
            prompt = self._encode_chat(conversation, protect_last_user_tokens, verbatim_guard)
        elif text is not None:
            prompt = self._encode_text(text, keep_spans, verbatim_guard)
        else:
            raise InvalidRequestError(
                "text_input", "neither text_input nor messages is set", "one of the two"
            )
        self._check_length(prompt, "text_input" if messages is None else "messages", max_tokens)
        return prompt

    def _check_length(self, prompt: Prompt, field: str, max_tokens: int) -> None:
        length = len(prompt.token_ids)
        longest = self._context_length - 1
        if length > longest:
            raise InvalidRequestError(
                field,
                f"the prompt has {length} tokens, more than the model's context of "
                f"{self._context_length} leaves room for",
                f"prompts of at most {longest} tokens",
            )
        if length + max_tokens > self._context_length:
            raise InvalidRequestError(
                "max_tokens",
                f"{max_tokens} after a prompt of {length} tokens exceeds the model's context of "
                f"{self._context_length}",
                f"integer from 1 up to {self._context_length - length}",
            )

    def _encode_text(self, text: str, keep_spans: str | None, verbatim_guard: bool) -> Prompt:
        if not text.strip():
            raise InvalidRequestError("text_input", "the prompt is empty", "text with content")
        spans = parse_keep_spans(keep_spans, len(text)) if keep_spans is not None else []
        ids, offsets = tokenise(self._tokenizer, text, add_special_tokens=True)
        protected = np.isin(ids, self._control_ids)  # [M]
        for start, end in spans:
            protected[slice(*tokens_touching(offsets, start, end))] = True
        verbatim = verbatim_guard and asks_for_verbatim_copy(text[-INSTRUCTION_CHARACTERS:])
        draft = self._draft.encode_text(text, offsets) if self._draft else None
        return _prompt(ids, protected, (), token_borders(text, offsets), verbatim, draft)

    def _encode_chat(
        self, conversation: Conversation, protect_last_user_tokens: int, verbatim_guard: bool
    ) -> Prompt:
        chat = self._template.render(conversation)
        if chat.literals:
            ids, offsets = tokenise_with_literals(self._tokenizer, chat.text, chat.literals)
        else:
            ids, offsets = tokenise(self._tokenizer, chat.text, add_special_tokens=False)
        draft = None
        prunable = chat.contents
        if self._draft:
            draft = self._draft.encode_chat(conversation, chat, offsets)
            prunable = tuple(c for c in prunable if c not in draft.unshared)

        roles = [message["role"] for message in conversation.messages]
        protected = np.ones(len(ids), dtype=np.bool_)  # [M]
        for content in prunable:
            if roles[content.message] in _PRUNABLE_ROLES:
                protected[slice(*tokens_within(offsets, content.start, content.end))] = False
        protected |= np.isin(ids, self._control_ids)
        turn = conversation.last_user_turn()
        is_last = turn == len(roles) - 1
        spans = _content_tokens(offsets, chat.contents)
        for content, (start, end) in zip(chat.contents, spans, strict=True):
            if content.message == turn:
                if end - start > protect_last_user_tokens:
                    tail = 0 if is_last else min(_LONG_TURN_TAIL, protect_last_user_tokens)
                    start = end - tail
                protected[start:end] = True
        role_spans = tuple(
            (start, end, ROLES.index(roles[content.message]))
            for content, (start, end) in zip(chat.contents, spans, strict=True)
            if start < end
        )
        question = "" if turn is None else conversation.messages[turn]["content"]
        verbatim = verbatim_guard and asks_for_verbatim_copy(question)
        borders = token_borders(chat.text, offsets)
        return _prompt(ids, protected, role_spans, borders, verbatim, draft)


def _prompt(
    ids: npt.NDArray[np.int32],
    protected: npt.NDArray[np.bool_],
    role_spans: tuple[tuple[int, int, int], ...],
    borders: npt.NDArray[np.uint8],
    verbatim: bool,
    draft: DraftPrompt | None,
) -> Prompt:
    return Prompt(
        ids,
        tuple(mask_to_spans(protected)),
        role_spans,
        borders,
        VERBATIM_REASON if verbatim else "",
        draft.ids if draft else None,
        draft.ranges if draft else None,
    )


def _content_tokens(offsets: Offsets, contents: tuple[Content, ...]) -> list[Span]:
    return [tokens_within(offsets, content.start, content.end) for content in contents]


def _control_ids(tokenizer: Any) -> npt.NDArray[np.int32]:
    """Return the ids of special tokens, and of added tokens that the chat template writes."""
    template = tokenizer.chat_template or ""
    if not isinstance(template, str):
        template = "\n".join(template.values())
    ids = [
        token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special or str(token) in template
    ]
    return np.array(sorted(ids), dtype=np.int32)


def mask_to_spans(mask: npt.NDArray[np.bool_]) -> list[Span]:
    """Return the half-open runs of True in a bool [M]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
