# SPDX-License-Identifier: Apache-2.0
"""Writes docs/configuration.md from the settings classes; `make docs` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specprefill.settings import SamplingSettings, SelectionSettings, Settings, allowed_values

_INTRODUCTION = """\
# Configuration reference

Generated from the settings classes by `make docs`; do not edit.

One tree, resolved in this order, later ones win: defaults < YAML file (`--config`, or the variable
`SPECPREFILL_CONFIG`) < environment < request. An environment variable names the path with double
underscores: `SPECPREFILL__DRAFT__LAYERS=16` sets `draft.layers`. Unknown keys are errors. YAML
files of the paper's reference implementation (`keep_strategy`, `keep_kwargs`, `look_ahead_cnt`,
`pool_kernel_size`, `ignore_eos`) are understood as they are.

Settings of the sections `selection` and `sampling` can be set per request, on every endpoint, under
the same names.
"""


def render() -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION, *_section("Top level", Settings, "")]
    for name, field in Settings.model_fields.items():
        section = _section_class(field)
        if section is not None:
            parts += _section(f"`{name}`", section, f"{name}.")
    return "\n".join(parts).rstrip() + "\n"


def _section(title: str, section: type[BaseModel], prefix: str) -> Iterator[str]:
    yield f"\n## {title}\n"
    if prefix:
        per_request = section in (SelectionSettings, SamplingSettings)
        yield f"{section.__doc__}".strip() + "\n"
        if per_request:
            yield "Request field: the name behind the dot.\n"
    yield "| setting | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, field in section.model_fields.items():
        if _section_class(field) is None:
            default = "unset" if field.default is None else f"`{_plain(field.default)}`"
            allowed = allowed_values(section, name).replace("|", "\\|")
            yield f"| `{prefix}{name}` | {default} | {allowed} | {field.description} |"


def _section_class(field: FieldInfo) -> type[BaseModel] | None:
    kinds = (field.annotation, *get_args(field.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
