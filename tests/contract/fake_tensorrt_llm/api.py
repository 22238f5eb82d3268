# SPDX-License-Identifier: Apache-2.0
"""Classes made from trtllm_api.json: they take the listed arguments and no others."""

from __future__ import annotations

import enum
import inspect
import json
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parent.parent / "trtllm_api.json").read_text()
)


def names(prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in FACTS["symbols"] if name.startswith(prefix)]


def make(symbol: str, without: frozenset[str] = frozenset()) -> type:
    """Make the class, record or enumeration that a symbol stands for."""
    facts = FACTS["symbols"][symbol]
    name = symbol.rpartition(".")[2]
    if facts["kind"] == "enum":
        return enum.Enum(name, facts["values"])  # type: ignore[return-value]
    if "fields" in facts:
        return _record(name, facts["fields"])
    return _configurable(name, facts, without)


def _record(name: str, fields: list[str]) -> type:
    """A result: only listed fields can be set, and only set ones read."""
    plain = [field for field in fields if not field.endswith("()")]

    def __init__(self: Any, **values: Any) -> None:  # noqa: N807
        for key, value in values.items():
            setattr(self, key, value)

    methods = {
        field.removesuffix("()"): lambda self: None for field in fields if field.endswith("()")
    }
    return type(name, (), {"__slots__": tuple(plain), "__init__": __init__, **methods})


def _configurable(name: str, facts: dict[str, Any], without: frozenset[str]) -> type:
    """A class whose constructor binds its arguments exactly as the bindings do."""
    params = [param for param in facts["params"] if param not in without]
    required = facts.get("required", [])
    defaults = facts.get("defaults", {})
    first_keyword_only = facts.get("keyword_only_from")
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    for param in params:
        if param == first_keyword_only:
            kind = inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if param in required else defaults.get(param)
        parameters.append(inspect.Parameter(param, kind, default=default))
    signature = inspect.Signature(parameters)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            setattr(self, key, value)

    return type(name, (), {"__slots__": tuple(params), "__init__": __init__})
