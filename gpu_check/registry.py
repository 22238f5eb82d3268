# SPDX-License-Identifier: Apache-2.0
"""What a check is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gpu_check.bench import Bench, Figure

SUITES = ("tensorrt", "torch")

Body = Callable[[Bench], None]


class Outcome(Enum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to find out.

    Attributes:
        name: short and unique.
        group: checks of a group share a process and what they load.
        suite: which command runs it.
        claim: what is true if it passes.
        needs: names of `gpu_check.needs.NEEDS` without which it is skipped.
        body: notes figures on the bench, and raises where the claim is wrong.
    """

    name: str
    group: str
    suite: str
    claim: str
    needs: tuple[str, ...]
    body: Body


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a check.

    Attributes:
        check: the check.
        outcome: pass, fail or skipped.
        reason: why it failed or was skipped.
        figures: what was measured, in order.
        seconds: how long it took.
    """

    check: Check
    outcome: Outcome
    reason: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)
    seconds: float = 0.0


def all_checks() -> list[Check]:
    """Collect the checks of every group, in the order in which they run."""
    # Imported late: a group's module is the only place that knows what it needs.
    from gpu_check import (
        checks_engines,
        checks_interface,
        checks_kernel,
        checks_parallel,
        checks_plugin,
        checks_torch,
    )

    modules = (
        checks_interface,
        checks_plugin,
        checks_engines,
        checks_parallel,
        checks_kernel,
        checks_torch,
    )
    return [check for module in modules for check in module.CHECKS]


def choose(checks: Sequence[Check], suite: str, only: Sequence[str]) -> list[Check]:
    """Take the checks of a suite whose name or group contains one of the given words, if any."""
    return [
        check
        for check in checks
        if check.suite == suite
        and (not only or any(word in check.name or word in check.group for word in only))
    ]


def repository_root() -> Path:
    """Return the folder that gpu_check lies in."""
    return Path(__file__).resolve().parents[1]
