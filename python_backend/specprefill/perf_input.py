# SPDX-License-Identifier: Apache-2.0
"""Prompt files for the load tools: perf_analyzer's --input-data, and name=value settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from specprefill.errors import InvalidRequestError, SpecPrefillError
from specprefill.triton_models.tensors import ENTRY

_INPUTS = {tensor.name: tensor for tensor in ENTRY.inputs}
_PROMPT_FIELDS = ("prompt", "text_input", "messages")


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Turn `keep_rate=0.2` into a value of the type that the input of this name has.

    Args:
        assignments: name=value each, as given on a command line.

    Raises:
        InvalidRequestError: no `=`, no public input of this name, or no value of its type.
    """
    settings = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise InvalidRequestError("--set", f"got {assignment!r}", "name=value")
        if name not in _INPUTS:
            allowed = ", ".join(sorted(_INPUTS))
            raise InvalidRequestError("--set", f"{name!r} is no public input", allowed)
        dtype = _INPUTS[name].dtype
        parse, allowed = _PARSERS[dtype]
        try:
            settings[name] = parse(text)
        except (KeyError, ValueError) as error:
            raise InvalidRequestError(name, f"got {text!r}", allowed) from error
    return settings


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "INT32": (int, "an integer"),
    "UINT64": (int, "an integer"),
    "FP16": (float, "a number"),
    "FP32": (float, "a number"),
    "BOOL": (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    "STRING": (str, "text"),
}


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read a prompt file: one record per line of a .jsonl file, else the whole file as one prompt.

    A line of a .jsonl file is a JSON string, or an object with either `prompt` (or `text_input`)
    or `messages` (a list of role and content), other public inputs, and `name`, which reports use.

    Args:
        path: the file, UTF-8.

    Returns:
        Records with exactly one of `prompt` and `messages`, other fields as they are.

    Raises:
        SpecPrefillError: the file cannot be read, or has no prompt.
        InvalidRequestError: a line is no record; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecPrefillError(f"{path} cannot be read: {error}") from error
    if path.suffix != ".jsonl":
        records = [{"prompt": text}] if text.strip() else []
    else:
        lines = enumerate(text.splitlines(), 1)
        records = [_record(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not records:
        raise SpecPrefillError(f"{path} holds no prompt")
    return records


def _record(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(place, f"no JSON: {error}", "one JSON value per line") from error
    if isinstance(record, str):
        record = {"prompt": record}
    if not isinstance(record, dict):
        raise InvalidRequestError(place, f"got {record!r}", "a JSON string or object")
    given = [name for name in _PROMPT_FIELDS if name in record]
    if len(given) != 1:
        problem = f"{' and '.join(given) or 'no prompt'} given"
        raise InvalidRequestError(place, problem, f"exactly one of {', '.join(_PROMPT_FIELDS)}")
    kind = list if given == ["messages"] else str
    prompt = record.pop(given[0])
    if not isinstance(prompt, kind) or not prompt:
        raise InvalidRequestError(f"{place}: {given[0]}", f"got {prompt!r}", f"a {kind.__name__}")
    return {"messages" if kind is list else "prompt": prompt, **record}


def perf_input(
    records: Iterable[Mapping[str, Any]], max_tokens: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Build perf_analyzer's --input-data: one streaming request per record.

    Args:
        records: from `read_prompts`; a record's own fields win over the two other arguments.
        max_tokens: length of each answer at most.
        settings: further public inputs for all requests, for example {"keep_rate": 0.2}.

    Raises:
        InvalidRequestError: a record has a field that is no public input.
    """
    return {"data": [_entry(record, max_tokens, settings) for record in records]}


def _entry(
    record: Mapping[str, Any], max_tokens: int, settings: Mapping[str, Any]
) -> dict[str, list[Any]]:
    fields = {"max_tokens": max_tokens, **settings, **record, "stream": True}
    fields.pop("name", None)
    if "messages" in record:
        fields["messages"] = json.dumps(fields["messages"])
    else:
        fields["text_input"] = fields.pop("prompt")
    unknown = [name for name in fields if name not in _INPUTS]
    if unknown:
        raise InvalidRequestError(unknown[0], "no public input", ", ".join(sorted(_INPUTS)))
    return {
        name: list(value) if isinstance(value, list) else [value] for name, value in fields.items()
    }
