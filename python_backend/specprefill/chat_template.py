# SPDX-License-Identifier: Apache-2.0
"""Messages -> the text that a model's chat template makes of them, and where each content is in it.

Searching for a content in the rendered text goes wrong when it repeats, or occurs in the template's
own words. So the conversation is rendered twice: as it is, and with marks around every content. The
marks are made of a character that occurs nowhere else. Where the second text without its marks
equals the first, the marks' places are exact; where a template reacts to the marks, that message
stays unlocated, and is protected as a whole.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from specprefill.errors import InvalidRequestError
from specprefill.messages import Conversation
from specprefill.selection import Span

# A template that reacts to marks costs renderings; beyond this many the rest stays unlocated.
_MAX_RENDERINGS = 32
_PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True, slots=True)
class Content:
    """A message's content in the rendered text.

    Attributes:
        message: index of the message.
        start: first character.
        end: one past the last character; white space around the content is left out.
    """

    message: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """What a chat template made of a conversation.

    Attributes:
        text: the whole prompt.
        contents: located contents, in the order of the text; unlocated messages are missing.
        literals: ascending character spans in which the client spelled a special token.
    """

    text: str
    contents: tuple[Content, ...] = ()
    literals: tuple[Span, ...] = ()


class ChatTemplate:
    """The chat template of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the tokenizer's special tokens."""
        self._tokenizer = tokenizer
        specials = {
            str(token) for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        longest_first = sorted(specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def render(self, conversation: Conversation, allow_ignored: bool = False) -> RenderedChat:
        """Apply the template, with the header of the answer at the end.

        Args:
            conversation: messages and tools.
            allow_ignored: do not mind a template that leaves out tools and tool calls.

        Raises:
            InvalidRequestError: there is no template, it refuses the messages, or it would leave
                out tools or tool calls.
        """
        if self._tokenizer.chat_template is None:
            raise InvalidRequestError(
                "messages", "the model has no chat template", "text_input with a finished prompt"
            )
        messages, tools = list(conversation.messages), list(conversation.tools)
        try:
            text = self._apply(messages, tools)
        except Exception as error:  # templates raise what their authors chose
            raise InvalidRequestError(
                "messages", f"the model's chat template refuses them: {error}", "other roles"
            ) from error
        if not allow_ignored:
            self._check_nothing_ignored(text, messages, tools)
        return self._locate(text, messages, tools)

    def _apply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        rendered: str = self._tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True
        )
        return rendered

    def _try(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | None:
        try:
            return self._apply(messages, tools)
        except Exception:  # a template may take offence at what it does not expect
            return None

    def _check_nothing_ignored(
        self, text: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> None:
        if tools and self._try(messages, []) == text:
            raise InvalidRequestError(
                "tools", "the model's chat template ignores them", "no tools with this model"
            )
        for i, message in enumerate(messages):
            if "tool_calls" not in message:
                continue
            bare = {key: value for key, value in message.items() if key != "tool_calls"}
            if self._try([*messages[:i], bare, *messages[i + 1 :]], tools) == text:
                raise InvalidRequestError(
                    f"messages[{i}].tool_calls",
                    "the model's chat template ignores them",
                    "no tool calls with this model",
                )
            return  # one call shows what the template does with all of them

    def _locate(
        self, text: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> RenderedChat:
        mark = _unused_character(text + json.dumps([messages, tools], ensure_ascii=False))
        pattern = re.compile(rf"{mark}(\d*)([()])")
        # Equal messages get equal marks, as some templates compare messages.
        groups: dict[str, list[int]] = {}
        for i, message in enumerate(messages):
            groups.setdefault(json.dumps(message), []).append(i)
        members = list(groups.values())
        marked = {
            i: self._mark_message(mark, group, messages[i])
            for group, same in enumerate(members)
            for i in same
        }
        marked_tools = self._mark_special(mark, tools)
        # The unit after the last group is the tools; per set of units the marked text, or None.
        renderings: dict[tuple[int, ...], str | None] = {}

        def render(units: tuple[int, ...]) -> str | None:
            """Return the text with the marks of some units, if they change nothing else."""
            if units not in renderings:
                mixed = messages.copy()
                for i in (i for unit in units if unit < len(members) for i in members[unit]):
                    mixed[i] = marked[i]
                rendered = self._try(mixed, marked_tools if len(members) in units else tools)
                unchanged = rendered is not None and pattern.sub("", rendered) == text
                renderings[units] = rendered if unchanged else None
            return renderings[units]

        def harmless(units: tuple[int, ...]) -> tuple[int, ...]:
            """Return the units whose marks change nothing else, by halving."""
            if len(renderings) >= _MAX_RENDERINGS:
                return ()
            if render(units) is not None:
                return units
            half = len(units) // 2
            return harmless(units[:half]) + harmless(units[half:]) if half else ()

        rendered = render(harmless(tuple(range(len(members) + 1))))
        if rendered is None:
            return RenderedChat(text)
        contents, literals = _read_marks(pattern, rendered)
        return RenderedChat(text, _name_messages(contents, members), literals)

    def _mark_message(self, mark: str, group: int, message: dict[str, Any]) -> dict[str, Any]:
        marked: dict[str, Any] = self._mark_special(mark, message)
        # Inside the white space, so that templates which strip a content strip the marked one too.
        content = marked["content"]
        body = content.strip()
        if body:
            start = content.index(body)
            before, after = content[:start], content[start + len(body) :]
            marked["content"] = f"{before}{mark}{group}({body}{mark}{group}){after}"
        return {**marked, "role": message["role"]}

    def _mark_special(self, mark: str, value: Any) -> Any:
        """Mark the special tokens spelled anywhere in a client's values."""
        if isinstance(value, str):
            return self._special.sub(lambda match: f"{mark}({match[0]}{mark})", value)
        if isinstance(value, dict):
            return {key: self._mark_special(mark, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._mark_special(mark, item) for item in value]
        return value


def _unused_character(text: str) -> str:
    return next(character for character in map(chr, _PRIVATE_USE) if character not in text)


def _read_marks(
    pattern: re.Pattern[str], marked: str
) -> tuple[list[tuple[int, int, int]], tuple[Span, ...]]:
    """Return (group, start, end) of contents, and literals, at their places without the marks.

    A content counts only if its end follows its own beginning: a template that cuts a text may
    leave one of the two.
    """
    contents, literals = [], []
    removed = 0
    opened: tuple[str, int] | None = None
    literal: int | None = None
    for match in pattern.finditer(marked):
        place = match.start() - removed
        removed += len(match[0])
        group, is_open = match[1], match[2] == "("
        if not group:
            if is_open:
                literal = place
            elif literal is not None:
                literals.append((literal, place))
                literal = None
        elif is_open:
            opened = group, place
        else:
            if opened is not None and opened[0] == group and place > opened[1]:
                contents.append((int(group), opened[1], place))
            opened = None
    return contents, tuple(literals)


def _name_messages(
    contents: list[tuple[int, int, int]], members: list[list[int]]
) -> tuple[Content, ...]:
    """Turn groups of equal messages into single messages, by their order in the text."""
    places = Counter(group for group, _, _ in contents)
    seen: Counter[int] = Counter()
    named = []
    for group, start, end in contents:
        same = members[group]
        # If some are missing or repeated, which is which is unknown; they differ in nothing else.
        position = seen[group] if places[group] == len(same) else -1
        seen[group] += 1
        named.append(Content(same[position], start, end))
    return tuple(named)
