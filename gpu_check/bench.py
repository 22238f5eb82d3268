# SPDX-License-Identifier: Apache-2.0
"""What a running check works with: options, figures, and the one heavy thing in memory."""

from __future__ import annotations

import contextlib
import gc
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprefill.settings import Settings, load_settings

Figure = float | int | str | bool


class CheckFailedError(Exception):
    """What a check claims is not true."""


class CheckSkippedError(Exception):
    """Something that the check needs turned out to be missing."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; travels to the processes that run checks.

    Attributes:
        config: YAML file of the deployment whose engines are checked.
        bfloat16_engines: folder of the same deployment's engines with bfloat16 weights.
        target_layers: layers of the large random-weight target.
        timeout_seconds: longest time that one check may take.
    """

    config: Path | None = None
    bfloat16_engines: Path | None = None
    target_layers: int = 16
    timeout_seconds: float = 1800

    def settings(self) -> Settings:
        """Read the deployment; raises ConfigurationError."""
        return load_settings(self.config)


class Bench:
    """Shared by the checks of a group; holds at most one heavy thing at a time."""

    def __init__(self, options: Options) -> None:
        """Start empty."""
        self.options = options
        self.figures: dict[str, Figure] = {}
        self._held: tuple[str, Any] | None = None
        self._kept: dict[str, Any] = {}
        self._folders = contextlib.ExitStack()

    def note(self, name: str, figure: Figure) -> None:
        """Record a figure for the report, also if the check fails later."""
        self.figures[name] = figure

    def require(self, condition: bool, reason: str) -> None:
        """Fail the check unless the condition holds."""
        if not condition:
            raise CheckFailedError(reason)

    def hold(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the heavy thing of that name; any other one is released first.

        Engines and reference models rarely fit into a GPU together.
        """
        if self._held is not None and self._held[0] != key:
            self.release()
        if self._held is None:
            self._held = (key, make())
        return self._held[1]

    def release(self) -> None:
        """Close the heavy thing and give its memory back."""
        if self._held is None:
            return
        close = getattr(self._held[1], "close", None)
        self._held = None
        if close is not None:
            close()
        del close  # the method would keep its object alive
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def keep(self, key: str, make: Callable[[], Any]) -> Any:
        """Return a light thing of that name, made once per group."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def new_folder(self) -> Path:
        """Make a folder that lives as long as the group."""
        return Path(self._folders.enter_context(tempfile.TemporaryDirectory(prefix="gpu-check-")))

    def close(self) -> None:
        """Release everything."""
        self.release()
        self._kept.clear()
        self._folders.close()
