# SPDX-License-Identifier: Apache-2.0
"""Whole engines behind their adapters against Hugging Face.

Everything is checked twice: on small engines with random weights, which are built here and need
no model, and on the engines of a configuration. Logits do not leave the executor, so they are
compared through log probabilities: Hugging Face reads what the engine generated, and both must
give every token the same log probability within the tolerance of the arithmetic.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.selection import keep_all, protected_mask, select

from gpu_check.bench import Bench, CheckSkippedError
from gpu_check.deployments import (
    Answer,
    Deployment,
    MakeDeployment,
    ask,
    configured_deployment,
    pruned_positions,
    small_deployment,
)
from gpu_check.measure import overlap, used_memory_mib
from gpu_check.reference import Ids, Judgement
from gpu_check.registry import Check

_TOKENS = 32
_PROMPT = 1000
# A wrong position has to be visible before a right one proves anything.
_CLEARLY_WORSE = 2.0
_LEAST_OVERLAP = 0.9
_MANY_REQUESTS = 300
_GROWTH_MIB = 64
_REPEATS = 5


def dense_against_hugging_face(bench: Bench, make: MakeDeployment) -> None:
    """Compare log probabilities of a prompt that keeps every token."""
    deployment = make(bench)
    _compare(bench, deployment, np.arange(_PROMPT, dtype=np.int32))


def pruned_against_hugging_face(bench: Bench, make: MakeDeployment) -> None:
    """Compare log probabilities of a pruned prompt at its original positions."""
    deployment = make(bench)
    _compare(bench, deployment, pruned_positions(_PROMPT))


def positions_are_honoured(bench: Bench, make: MakeDeployment) -> None:
    """Tell the original positions from positions that follow each other without gaps."""
    deployment = make(bench)
    positions = pruned_positions(_PROMPT)
    prompt = deployment.prompt(_PROMPT)[positions]
    answer = ask(deployment.target(bench), prompt, positions, _TOKENS)
    reference = deployment.reference(bench)
    right = _error(answer, reference.judge(prompt, positions, answer.tokens, _PROMPT))
    closed = np.arange(len(prompt), dtype=np.int32)
    wrong = _error(answer, reference.judge(prompt, closed, answer.tokens, len(prompt)))
    bench.note("error, original positions", right)
    bench.note("error, gaps closed", wrong)
    _require_clear(bench, right, wrong, "the engine does not use the positions it is given")


def decoding_starts_at_m(bench: Bench, make: MakeDeployment) -> None:
    """Tell decoding from position M from decoding behind the number of kept tokens."""
    deployment = make(bench)
    positions = pruned_positions(_PROMPT)
    prompt = deployment.prompt(_PROMPT, seed=1)[positions]
    answer = ask(deployment.target(bench), prompt, positions, _TOKENS)
    reference = deployment.reference(bench)
    errors = {
        name: _error(answer, reference.judge(prompt, positions, answer.tokens, start), skip=1)
        for name, start in (("M", _PROMPT), ("K", len(prompt)), ("0", 0))
    }
    for name, error in errors.items():
        bench.note(f"error, decoding from {name}", error)
    worse = min(errors["K"], errors["0"])
    _require_clear(bench, errors["M"], worse, "decoding does not start at M")


def chunked_context(bench: Bench, make: MakeDeployment) -> None:
    """Compare prompts that need more than one step, dense and with gaps."""
    deployment = make(bench)
    length = min(deployment.longest_prompt - 1, 2 * deployment.step_tokens + 100)
    if length <= deployment.step_tokens:
        raise CheckSkippedError(
            f"every prompt fits into one step of {deployment.step_tokens} tokens"
        )
    bench.note("prompt tokens", length)
    bench.note("step tokens", deployment.step_tokens)
    dense = np.arange(length, dtype=np.int32)
    _compare(bench, deployment, dense, "dense ")
    # Every third chunk is left out, so that more than one step is left.
    kept = dense[(dense // 32 % 3 != 0) | (dense >= length - 64)]
    if len(kept) > deployment.step_tokens:
        _compare(bench, deployment, kept, "with gaps ")


def cache_salt_keeps_positions_apart(bench: Bench, make: MakeDeployment) -> None:
    """Send the same tokens at other positions while cached blocks are shared."""
    deployment = make(bench)
    target = deployment.target(bench, enable_block_reuse=True)
    kept = pruned_positions(_PROMPT)
    prompt = deployment.prompt(_PROMPT, seed=2)[kept]
    dense = np.arange(len(prompt), dtype=np.int32)
    cases = (("pruned", kept), ("dense", dense), ("pruned again", kept), ("dense again", dense))
    answers = {name: (positions, ask(target, prompt, positions, 8)) for name, positions in cases}
    del target  # the reference takes its place on the GPU
    reference = deployment.reference(bench)
    for name, (positions, answer) in answers.items():
        start = int(positions[-1]) + 1
        judgement = reference.judge(prompt, positions, answer.tokens, start)
        _require_close(bench, deployment, answer, judgement, f"{name} ")


def memory_over_many_requests(bench: Bench, make: MakeDeployment) -> None:
    """Serve requests of changing lengths."""
    deployment = make(bench)
    target = deployment.target(bench)
    longest = min(deployment.step_tokens, deployment.longest_prompt) - 8
    prompt = deployment.prompt(longest)
    positions = np.arange(longest, dtype=np.int32)
    ask(target, prompt, positions, 2)
    before = used_memory_mib()
    for index in range(_MANY_REQUESTS):
        length = 1 + index * 997 % longest
        ask(target, prompt[:length], positions[:length], 2)
    grown = used_memory_mib() - before
    bench.note("requests", _MANY_REQUESTS)
    bench.note("grown MiB", grown)
    bench.require(grown <= _GROWTH_MIB, f"memory grew by {grown:.0f} MiB")


def engine_tensors(bench: Bench, make: MakeDeployment) -> None:
    """Compare the inputs and outputs of both engines with the plan, and find the readers."""
    from build_engines.engines import check_engine, load_tensorrt_llm
    from build_engines.plan import make_plan

    settings = make(bench).settings
    load_tensorrt_llm()
    folder = Path(str(settings.tensorrt_llm.engine_dir))
    plan = make_plan(settings, folder)
    for engine in (plan.draft, plan.target):
        for rank in range(engine.world_size):
            names = check_engine(engine, rank, folder / engine.name / f"rank{rank}.engine")
            planned = {tensor.name for tensor in engine.tensors(rank)}
            unknown = sorted(set(names) - planned)
            bench.note(f"{engine.name} rank {rank} tensors", len(names))
            bench.require(not unknown, f"{engine.name}: unknown tensors {', '.join(unknown)}")


def draft_selection(bench: Bench, make: MakeDeployment, scorer: str) -> None:
    """Compare what the draft engine selects with what Hugging Face's attention selects."""
    deployment = make(bench)
    settings = deployment.settings.selection.for_request({"scorer": scorer, "ignore_eos": True})
    rule = make_rule(settings)
    prompt = deployment.prompt(_PROMPT, seed=3)
    layers = deployment.settings.draft.score_layers
    observer = AttentionObserver(rule, _PROMPT, layers)
    deployment.draft(bench).observe(prompt, observer)
    from_engine = observer.importance().cpu().numpy()
    from_reference = deployment.reference(bench, "draft", "eager").importance(prompt, rule, layers)
    unprotected = protected_mask(_PROMPT, 0, 0, ())
    kept = [
        select(importance, settings, unprotected).kept.tolist()
        for importance in (from_engine, from_reference)
    ]
    bench.note("selection overlap", overlap(*kept))
    bench.note("correlation", float(np.corrcoef(from_engine, from_reference)[0, 1]))
    bench.require(
        overlap(*kept) >= _LEAST_OVERLAP, "the draft engine selects other tokens than Hugging Face"
    )


def draft_memory(bench: Bench, make: MakeDeployment) -> None:
    """Read prompts of changing lengths."""
    deployment = make(bench)
    draft = deployment.draft(bench)
    rule = make_rule(deployment.settings.selection)
    longest = min(draft.context_length, 8192)
    prompt = deployment.prompt(longest)

    def read(length: int) -> None:
        draft.observe(prompt[:length], AttentionObserver(rule, length))

    read(longest)
    before = used_memory_mib()
    for index in range(_MANY_REQUESTS):
        read(64 + index * 997 % (longest - 64))
    grown = used_memory_mib() - before
    bench.note("prompts", _MANY_REQUESTS)
    bench.note("grown MiB", grown)
    bench.require(grown <= _GROWTH_MIB, f"memory grew by {grown:.0f} MiB")


def time_to_first_token(bench: Bench, make: MakeDeployment, must_gain: bool) -> None:
    """Time the draft and the target's prefill, dense and sparse, one after the other."""
    deployment = make(bench)
    settings = deployment.settings.selection
    length = deployment.longest_prompt - 64
    prompt = deployment.prompt(length, seed=4)
    draft, rule = deployment.draft(bench), make_rule(settings)
    mask = protected_mask(length, settings.protect_first, settings.protect_last, ())
    kept, draft_times = keep_all(length, "").kept, []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        observer = AttentionObserver(rule, length, deployment.settings.draft.score_layers)
        draft.observe(prompt, observer)
        importance = observer.importance().cpu().numpy()
        kept = select(importance, settings, mask).kept
        draft_times.append((time.perf_counter() - started) * 1e3)
    del draft  # the target takes its place on the GPU
    target = deployment.target(bench)
    everything = np.arange(length, dtype=np.int32)
    dense = [ask(target, prompt, everything, 1).prefill_ms for _ in range(_REPEATS)]
    pruned = [ask(target, prompt[kept], kept, 1).prefill_ms for _ in range(_REPEATS)]
    # The first of each allocates and tunes.
    dense_ms, pruned_ms, draft_ms = (float(np.median(t[1:])) for t in (dense, pruned, draft_times))
    bench.note("prompt tokens", length)
    bench.note("kept tokens", len(kept))
    bench.note("dense ms", dense_ms)
    bench.note("draft ms", draft_ms)
    bench.note("pruned prefill ms", pruned_ms)
    ratio = dense_ms / (draft_ms + pruned_ms)
    bench.note("TTFT ratio", ratio)
    if must_gain:
        bench.require(ratio > 1, f"sparse is slower than dense: ratio {ratio:.2f}")


def decode_speed(bench: Bench, make: MakeDeployment) -> None:
    """Time decoding: an attention kernel for other position types may be a slow one."""
    deployment = make(bench)
    target = deployment.target(bench)
    positions = pruned_positions(_PROMPT)
    prompt = deployment.prompt(_PROMPT)[positions]
    count = 128
    ask(target, prompt, positions, count)
    started = time.perf_counter()
    answer = ask(target, prompt, positions, count)
    decode_ms = (time.perf_counter() - started) * 1e3 - answer.prefill_ms
    bench.note("ms per token", decode_ms / (count - 1))
    bench.require(len(answer.tokens) == count, "the answer is too short")


def fp8_against_bfloat16(bench: Bench) -> None:
    """Compare FP8 engines with bfloat16 engines of the same model."""
    deployment = configured_deployment(bench)
    if deployment.settings.build.target_weights != "fp8":
        raise CheckSkippedError("the configured target is not FP8")
    positions = pruned_positions(_PROMPT)
    prompt = deployment.prompt(_PROMPT, seed=5)[positions]
    low = ask(deployment.target(bench), prompt, positions, 1)
    high_target = deployment.target(bench, engine_dir=str(bench.options.bfloat16_engines))
    high = ask(high_target, prompt, positions, 1)
    bench.note("same first token", bool(low.tokens[0] == high.tokens[0]))
    difference = abs(float(low.log_probs[0] - high.log_probs[0]))
    bench.note("log probability difference", difference)
    if low.tokens[0] == high.tokens[0]:
        bench.require(difference <= deployment.tolerance, "FP8 is far from bfloat16")
        return
    # With near ties the two may choose differently; then both must have been near ties.
    bench.require(
        max(float(low.log_probs[0]), float(high.log_probs[0])) <= np.log(0.6),
        "FP8 and bfloat16 disagree about a token that one of them is sure of",
    )


def _compare(bench: Bench, deployment: Deployment, positions: Ids, prefix: str = "") -> None:
    """Let the engine answer, then let Hugging Face judge the answer."""
    length = int(positions[-1]) + 1
    prompt = deployment.prompt(length)[positions]
    answer = ask(deployment.target(bench), prompt, positions, _TOKENS)
    judgement = deployment.reference(bench).judge(prompt, positions, answer.tokens, length)
    _require_close(bench, deployment, answer, judgement, prefix)


def _require_close(
    bench: Bench, deployment: Deployment, answer: Answer, judgement: Judgement, prefix: str
) -> None:
    error = _error(answer, judgement)
    same = float((judgement.best == judgement.log_probs).mean())
    bench.note(f"{prefix}log probability error", error)
    bench.note(f"{prefix}greedy tokens equal", same)
    bench.note(f"{prefix}largest regret", judgement.regret)
    bench.require(
        error <= deployment.tolerance and judgement.regret <= deployment.tolerance,
        f"{prefix}log probabilities differ by more than {deployment.tolerance}",
    )


def _error(answer: Answer, judgement: Judgement, skip: int = 0) -> float:
    """Return the largest difference of log probabilities, the first `skip` tokens left out."""
    return float(np.abs(answer.log_probs - judgement.log_probs)[skip:].max())


def _require_clear(bench: Bench, right: float, wrong: float, reason: str) -> None:
    if max(right, wrong) < 1e-3:
        raise CheckSkippedError("this prompt's answer does not depend on positions")
    bench.require(right * _CLEARLY_WORSE <= wrong, reason)


_BOTH: tuple[tuple[str, str, Any], ...] = (
    (
        "engine tensors",
        "inputs and outputs are the planned ones, position_ids read",
        engine_tensors,
    ),
    ("dense log probabilities", "equal Hugging Face's", dense_against_hugging_face),
    (
        "pruned log probabilities",
        "equal Hugging Face's at the positions",
        pruned_against_hugging_face,
    ),
    ("explicit positions", "closing the gaps is clearly worse", positions_are_honoured),
    ("decoding starts at M", "other starts are clearly worse", decoding_starts_at_m),
    ("chunked context", "prompts of several steps equal Hugging Face's", chunked_context),
    (
        "cache salt",
        "equal tokens at other positions share nothing",
        cache_salt_keeps_positions_apart,
    ),
    ("target memory", f"{_MANY_REQUESTS} lengths take no memory", memory_over_many_requests),
    (
        "draft, zscore",
        "selects as Hugging Face's attention",
        partial(draft_selection, scorer="zscore"),
    ),
    (
        "draft, lookahead",
        "selects as Hugging Face's attention",
        partial(draft_selection, scorer="lookahead"),
    ),
    ("draft memory", f"{_MANY_REQUESTS} lengths take no memory", draft_memory),
    ("decode speed", "noted: the kernel for this position type", decode_speed),
)

_RUNTIME = ("cuda", "tensorrt_llm", "plugin")


def _checks(label: str, make: MakeDeployment, needs: tuple[str, ...], gain: bool) -> list[Check]:
    speed = (
        "TTFT dense against sparse",
        "sparse is faster" if gain else "noted; small engines gain nothing",
        partial(time_to_first_token, must_gain=gain),
    )
    checks = [
        Check(
            f"{label}: {name}",
            f"{label} engines",
            "tensorrt",
            claim,
            (*_RUNTIME, *needs),
            partial(body, make=make),
        )
        for name, claim, body in (*_BOTH, speed)
    ]
    # Checks that compare with nothing need no weights.
    without_weights = ("engine tensors", "memory", "speed", "TTFT")
    return [
        replace(check, needs=tuple(need for need in check.needs if need != "weights"))
        if any(word in check.name for word in without_weights)
        else check
        for check in checks
    ]


CHECKS = [
    *_checks("small", small_deployment, (), gain=False),
    *_checks("configured", configured_deployment, ("engines", "weights"), gain=True),
    Check(
        "configured: FP8 against bfloat16",
        "configured engines",
        "tensorrt",
        "the first token's log probability is near",
        (*_RUNTIME, "engines", "bfloat16 engines"),
        fp8_against_bfloat16,
    ),
]
