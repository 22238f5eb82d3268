# SPDX-License-Identifier: Apache-2.0
"""BreakEvenGate: a prompt whose pruning would not bring the first token sooner goes dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specprefill.cost_model import Pass, draft_passes, draft_work, prefill_pass
from specprefill.engine_costs import EngineCost
from specprefill.memory_plan import ModelShape
from specprefill.scoring import ScoringRule
from specprefill.settings import DraftSettings

# Too short to tell anything: launches and loops of Python dominate.
_SHORTEST_TOKENS = 256
_ENOUGH_SECONDS = 0.1
# Whatever else the machine does only ever adds time, so the shortest of a few runs is the truest.
_RUNS = 3


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times to first token, in seconds, without queues.

    Attributes:
        dense: prefill of the whole prompt.
        sparse: the draft and the prefill of the kept tokens.
    """

    dense: float
    sparse: float


class BreakEvenGate:
    """Predicts both times from what the engines took at start-up, scaled by their arithmetic."""

    def __init__(
        self,
        target: ModelShape,
        draft: ModelShape,
        draft_settings: DraftSettings,
        costs: Callable[[], tuple[EngineCost, EngineCost] | None],
        margin: float,
    ) -> None:
        """Prepare the gate of one deployment.

        Args:
            target: shape of the target.
            draft: shape of the whole draft.
            draft_settings: how much of the draft runs.
            costs: returns what the target and the draft take; None as long as one is unknown, and
                the gate lets every prompt through.
            margin: share of the dense time that pruning must save.
        """
        self._target = target
        self._draft = draft
        self._draft_settings = draft_settings
        self._costs = costs
        self._margin = margin

    def dense_reason(
        self, rule: ScoringRule, prompt_tokens: int, draft_tokens: int, kept_tokens: int
    ) -> str:
        """Tell why a prompt had better be dense; empty if pruning is expected to pay.

        Args:
            rule: how the prompt would be scored.
            prompt_tokens: M.
            draft_tokens: the prompt's length in the draft's own tokens.
            kept_tokens: K, as far as it is known before scoring.
        """
        predicted = self.predict(rule, prompt_tokens, draft_tokens, kept_tokens)
        if predicted is None or predicted.sparse <= predicted.dense * (1 - self._margin):
            return ""
        return (
            f"pruning would not pay, {predicted.sparse * 1e3:.0f} ms against "
            f"{predicted.dense * 1e3:.0f} ms expected (gate)"
        )

    def predict(
        self, rule: ScoringRule, prompt_tokens: int, draft_tokens: int, kept_tokens: int
    ) -> Prediction | None:
        """Return both expected times, or None while an engine's cost is unknown."""
        costs = self._costs()
        if costs is None:
            return None
        target, draft = costs
        sparse = operations(prefill_pass(self._target, kept_tokens)) * target.seconds_per_operation
        if rule.needs_draft:
            sparse += draft_operations(self._draft, self._draft_settings, rule, draft_tokens) * (
                draft.seconds_per_operation
            )
            sparse += (rule.look_ahead - 1) * draft.step_seconds
        dense = operations(prefill_pass(self._target, prompt_tokens)) * target.seconds_per_operation
        return Prediction(dense, sparse)


def operations(one: Pass) -> float:
    """Return the multiply-adds of a pass, all taken to run at one rate."""
    return one.linear + one.attention


def draft_operations(
    shape: ModelShape, settings: DraftSettings, rule: ScoringRule, tokens: int
) -> float:
    """Return the multiply-adds of the draft's reading, without its look-ahead steps."""
    work = draft_work(shape, settings, rule.prompt_queries, rule.look_ahead)
    return operations(draft_passes(shape, work, tokens)[0])


def calibrate(
    run: Callable[[int], float], work: Callable[[int], float], longest_tokens: int
) -> float:
    """Return the seconds per multiply-add of an engine.

    Args:
        run: prefills so many tokens and returns the seconds it took.
        work: returns the multiply-adds of that.
        longest_tokens: longest prompt to try; a fast engine is asked for more tokens, so that
            what a call costs whatever its length does not count as arithmetic.
    """
    tokens = min(_SHORTEST_TOKENS, longest_tokens)
    while True:
        seconds = run(tokens)
        if seconds >= _ENOUGH_SECONDS or tokens * 4 > longest_tokens:
            return min(seconds, *(run(tokens) for _ in range(_RUNS - 1))) / work(tokens)
        tokens *= 4
