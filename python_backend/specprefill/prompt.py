# SPDX-License-Identifier: Apache-2.0
"""Text or chat messages -> prompt token ids, with the spans that must be kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer

from specprefill.errors import ConfigurationError, InvalidRequestError
from specprefill.selection import Span

ROLES = ("system", "user", "assistant", "tool")
# What pruning may drop; everything else a chat template renders is control text.
_PRUNABLE_ROLES = frozenset(("user", "assistant", "tool"))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt.

    Attributes:
        token_ids: int32 [M].
        protected: half-open token spans that must be kept (template control text, system prompt).
    """

    token_ids: npt.NDArray[np.int32]
    protected: tuple[Span, ...] = ()


def load_tokenizer(folder: str | Path, trust_remote_code: bool = False) -> Any:
    """Load a fast tokenizer.

    Raises:
        ConfigurationError: the folder is missing, or its tokenizer gives no character offsets.
    """
    if not Path(folder).is_dir():
        raise ConfigurationError(f"model folder {folder} does not exist")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model folder {folder}: no usable tokenizer: {error}") from error
    if not tokenizer.is_fast:
        raise ConfigurationError(
            f"model folder {folder}: a fast tokenizer (tokenizer.json) is needed"
        )
    return tokenizer


def check_same_tokenizer(draft: Any, target: Any) -> None:
    """Refuse a draft whose token ids mean something else than the target's.

    Raises:
        ConfigurationError: names the first difference.
    """
    ours, theirs = draft.get_vocab(), target.get_vocab()
    if ours != theirs:
        differing = sorted(t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t))
        raise ConfigurationError(
            f"draft.model and target.model have different tokenizers: {len(differing)} tokens "
            f"differ, first {differing[0]!r} (draft {ours.get(differing[0])}, "
            f"target {theirs.get(differing[0])}); use a draft of the target's family"
        )
    probe = "Draft & target: naïve café, 12345,\n\ttabs, 日本語 and 😀."
    if draft(probe).input_ids != target(probe).input_ids:
        raise ConfigurationError(
            "draft.model and target.model split text into different tokens although their "
            "vocabularies agree; use a draft of the target's family"
        )


class PromptEncoder:
    """Turns a request's text or messages into a prompt that fits the context."""

    def __init__(self, tokenizer: Any, context_length: int) -> None:
        """Keep the tokenizer and the longest prompt + answer that the target can hold."""
        self._tokenizer = tokenizer
        self._context_length = context_length

    def encode(self, text: str | None, messages: str | None, max_tokens: int = 1) -> Prompt:
        """Tokenise exactly one of text and messages.

        Args:
            text: the raw prompt.
            messages: a JSON list of {"role", "content"} objects; the chat template is applied.
            max_tokens: tokens to generate, which must fit behind the prompt.

        Raises:
            InvalidRequestError: names the field, its problem and what is allowed.
        """
        if text is not None and messages is not None:
            raise InvalidRequestError(
                "messages", "text_input is set as well", "either text_input or messages"
            )
        if messages is not None:
            prompt = self._encode_messages(parse_messages(messages))
        elif text is not None:
            prompt = self._encode_text(text)
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

    def _encode_text(self, text: str) -> Prompt:
        if not text.strip():
            raise InvalidRequestError("text_input", "the prompt is empty", "text with content")
        ids = self._tokenizer(text, verbose=False).input_ids
        return Prompt(np.asarray(ids, dtype=np.int32))

    def _encode_messages(self, messages: Sequence[dict[str, str]]) -> Prompt:
        if self._tokenizer.chat_template is None:
            raise InvalidRequestError(
                "messages", "the model has no chat template", "text_input with a finished prompt"
            )
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates raise what their authors chose
            raise InvalidRequestError(
                "messages", f"the model's chat template refuses them: {error}", "other roles"
            ) from error
        encoded = self._tokenizer(
            rendered, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        prunable = np.zeros(len(rendered) + 1, dtype=np.bool_)
        cursor = 0
        for message in messages:
            content = message["content"].strip()
            found = rendered.find(content, cursor)
            if found < 0:  # a template that rewrites a message leaves nothing safe to drop in it
                continue
            cursor = found + len(content)
            prunable[found:cursor] = message["role"] in _PRUNABLE_ROLES
        offsets = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)  # [M, 2]
        inside = np.append(0, np.cumsum(prunable))
        counts = inside[offsets[:, 1]] - inside[offsets[:, 0]]
        protected = counts < np.maximum(offsets[:, 1] - offsets[:, 0], 1)  # [M]
        ids = np.asarray(encoded["input_ids"], dtype=np.int32)
        return Prompt(ids, tuple(mask_to_spans(protected)))


def mask_to_spans(mask: npt.NDArray[np.bool_]) -> list[Span]:
    """Return the half-open runs of True in a bool [M]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def parse_messages(text: str) -> list[dict[str, str]]:
    """Read chat messages from JSON.

    Raises:
        InvalidRequestError: no JSON, no list, an unknown role, or content that is no text.
    """
    allowed = 'a JSON list of {"role": "system|user|assistant|tool", "content": "text"}'
    try:
        messages = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequestError("messages", f"no valid JSON: {error}", allowed) from error
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("messages", "no list of messages, or an empty one", allowed)
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequestError(f"messages[{i}]", "no object", allowed)
        unknown = sorted(message.keys() - {"role", "content"})
        if unknown:
            raise InvalidRequestError(f"messages[{i}].{unknown[0]}", "unknown key", allowed)
        if message.get("role") not in ROLES:
            raise InvalidRequestError(
                f"messages[{i}].role", f"got {message.get('role')!r}", ", ".join(ROLES)
            )
        if not isinstance(message.get("content"), str):
            raise InvalidRequestError(f"messages[{i}].content", "no text", "a string")
        try:
            message["content"].encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"messages[{i}].content", "a lone surrogate is no character", "valid Unicode"
            ) from error
    if not any(message["content"].strip() for message in messages):
        raise InvalidRequestError("messages", "every message is empty", "text with content")
    return messages
