# SPDX-License-Identifier: Apache-2.0
import threading
import time

import numpy as np
import pytest
import torch
from specprefill.errors import (
    EngineError,
    InvalidRequestError,
    RequestCancelledError,
    ServerBusyError,
)
from specprefill.settings import SamplingSettings, TargetSettings
from specprefill.target.base import FinishReason, GenerationRequest
from specprefill.target.sequence import Sequence
from specprefill.target.torch_target import TorchTarget
from transformers import AutoModelForCausalLM, DynamicCache

SETTINGS = TargetSettings(dtype="float32", prefill_chunk_tokens=128, max_running=4)


@pytest.fixture(scope="module")
def target(tiny_llama):
    engine = TorchTarget(tiny_llama, SETTINGS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def ids(length, seed=0):
    return np.random.default_rng(seed).integers(10, 40_000, length).astype(np.int32)


def request(tokens, kept=None, name="r", stop=frozenset(), bad=(), **sampling):
    kept = np.arange(len(tokens), dtype=np.int32) if kept is None else kept
    settings = SamplingSettings(**{"max_tokens": 12, **sampling})
    return GenerationRequest(name, tokens[kept], kept, len(tokens), settings, stop, bad)


def tokens_of(steps):
    return [step.token_id for step in steps if step.token_id is not None]


def pruned(length, seed=0):
    keep = np.random.default_rng(seed).random(length) < 0.3
    keep[-1] = True
    return np.flatnonzero(keep).astype(np.int32)


@pytest.mark.parametrize("length", [1, 5, 128, 300])
def test_a_whole_prompt_gives_the_tokens_of_transformers_generate(target, reference, length):
    tokens = ids(length)
    prompt = torch.from_numpy(tokens.astype(np.int64))[None]
    expected = reference.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, length:]
    assert tokens_of(target.submit(request(tokens))) == expected.tolist()


@pytest.mark.parametrize("length", [40, 700])
def test_every_step_equals_one_forward_at_the_original_positions(
    target, reference, length, monkeypatch
):
    """Logits of each step against transformers over kept + generated tokens, with a cache."""
    seen = []
    take = Sequence.take_logits
    monkeypatch.setattr(
        Sequence,
        "take_logits",
        lambda self, row, normalizer: (seen.append(row.clone()), take(self, row, normalizer))[1],
    )
    tokens, kept = ids(length), pruned(length)
    generated = tokens_of(target.submit(request(tokens, kept)))
    sequence = torch.tensor([*tokens[kept], *generated[:-1]])[None]
    positions = torch.tensor([*kept, *range(length, length + len(generated) - 1)])[None]
    with torch.inference_mode():
        logits = reference(
            sequence, position_ids=positions, cache=DynamicCache(), use_cache=True
        ).logits[0, len(kept) - 1 :]
    torch.testing.assert_close(torch.stack(seen), logits, rtol=1e-4, atol=1e-4)
    assert logits.argmax(-1).tolist() == generated


def test_positions_matter(target):
    """The same tokens at other positions are another prompt."""
    tokens, kept = ids(700), pruned(700)
    packed = tokens[kept]
    assert tokens_of(target.submit(request(tokens, kept))) != tokens_of(
        target.submit(request(packed))
    )


def test_gaps_are_not_taken_for_packed_sequences(target, reference):
    """Without care transformers masks across gaps in the ids; the first token must see all."""
    tokens = ids(60)
    kept = np.array([0, 1, 2, 30, 31, 58, 59], dtype=np.int32)
    step = next(iter(target.submit(request(tokens, kept))))
    sequence = torch.from_numpy(tokens[kept].astype(np.int64))[None]
    positions = torch.from_numpy(kept.astype(np.int64))[None]
    with torch.inference_mode():
        whole = reference(
            sequence, position_ids=positions, cache=DynamicCache(), use_cache=True
        ).logits[0, -1]
        packed = reference(sequence, position_ids=positions, use_cache=False).logits[0, -1]
    assert step.log_prob == pytest.approx(float(whole.log_softmax(-1).max()), abs=1e-4)
    assert not torch.allclose(whole, packed, atol=0.1)


def test_sixteen_mixed_requests_answer_as_one_by_one(target):
    requests = []
    for i in range(16):
        tokens = ids(20 + 37 * i, seed=i)
        kept = pruned(len(tokens), seed=i) if i % 2 else None
        requests.append(request(tokens, kept, name=f"r{i}", max_tokens=5 + i))
    alone = [tokens_of(target.submit(r)) for r in requests]
    together = [target.submit(r) for r in requests]  # all are in flight before one is read
    assert [tokens_of(steps) for steps in together] == alone


def test_streams_go_on_while_a_long_prompt_is_prefilled(target):
    """Between two tokens of a running stream lies one chunk of the other's prefill at most."""
    running = iter(target.submit(request(ids(20), name="running", max_tokens=200)))
    next(running)
    long = target.submit(request(ids(6000), name="long", max_tokens=1))
    produced = 0
    done = threading.Event()
    threading.Thread(target=lambda: (list(long), done.set())).start()
    while not done.is_set():
        next(running)
        produced += 1
    running.close()
    assert produced > 6000 // SETTINGS.prefill_chunk_tokens // 2


def test_stop_tokens_end_the_answer_and_are_not_part_of_it(target):
    tokens = ids(50)
    free = tokens_of(target.submit(request(tokens)))
    stop = free[3]
    steps = list(target.submit(request(tokens, stop=frozenset((stop,)))))
    assert tokens_of(steps) == free[: free.index(stop)]
    assert steps[-1].finish_reason is FinishReason.STOP
    held = list(target.submit(request(tokens, stop=frozenset((stop,)), min_tokens=6)))
    assert stop not in tokens_of(held)[:6]
    assert len(tokens_of(held)) >= 6


def test_bad_sequences_are_never_completed(target):
    tokens = ids(50)
    free = tokens_of(target.submit(request(tokens)))
    single = tokens_of(target.submit(request(tokens, bad=((free[0],),))))
    assert free[0] not in single
    pair = tokens_of(target.submit(request(tokens, bad=((free[0], free[1]),))))
    assert pair[0] == free[0]
    assert pair[1] != free[1]


def test_length_is_the_reason_at_max_tokens(target):
    steps = list(target.submit(request(ids(10), max_tokens=3)))
    assert len(tokens_of(steps)) == 3
    assert steps[-1].finish_reason is FinishReason.LENGTH
    assert steps[0].prefill_ms > 0


def test_the_same_seed_gives_the_same_sample(target):
    sampled = [
        tokens_of(target.submit(request(ids(30), temperature=2.0, top_k=50, seed=seed)))
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


def test_cancelling_frees_the_slot(target):
    steps = target.submit(request(ids(20), name="c", max_tokens=4000))
    next(steps)
    assert target.cancel("c")
    with pytest.raises(RequestCancelledError):
        list(steps)
    assert not target.cancel("c")
    assert target.load[0] == 0


def assert_idle_soon(target):
    """The last step of a request is out a moment before its slot is free."""
    deadline = time.monotonic() + 5
    while target.load != (0, 0, 0):
        assert time.monotonic() < deadline, target.load
        time.sleep(0.01)


def test_closing_a_stream_frees_the_slot(target):
    steps = target.submit(request(ids(20), max_tokens=4000))
    next(steps)
    steps.close()
    assert_idle_soon(target)


def test_200_cancelled_requests_leave_nothing(target):
    for i in range(200):
        steps = target.submit(request(ids(30 + i), name=f"x{i}", max_tokens=50))
        if i % 3 == 0:
            next(steps)
        target.cancel(f"x{i}")
        if i % 3:
            with pytest.raises(RequestCancelledError):
                list(steps)
    assert len(tokens_of(target.submit(request(ids(20))))) == 12
    assert_idle_soon(target)


def test_a_full_queue_is_told_at_once(tiny_llama):
    engine = TorchTarget(tiny_llama, TargetSettings(dtype="float32", max_running=1, max_queue=1))
    try:
        running = engine.submit(request(ids(20), name="a", max_tokens=4000))
        next(running)
        waiting = engine.submit(request(ids(20), name="b", max_tokens=2))
        with pytest.raises(ServerBusyError, match="1 requests are running and 1 are waiting"):
            engine.submit(request(ids(20), name="c"))
        engine.cancel("a")
        assert len(tokens_of(waiting)) == 2
    finally:
        engine.close()


def test_requests_wait_for_room_in_the_cache(tiny_llama):
    settings = TargetSettings(dtype="float32", max_running=4, kv_cache_tokens=64)
    engine = TorchTarget(tiny_llama, settings)
    try:
        streams = [
            engine.submit(request(ids(30, seed=i), name=f"{i}", max_tokens=20)) for i in range(3)
        ]
        assert [len(tokens_of(steps)) for steps in streams] == [20, 20, 20]
        with pytest.raises(InvalidRequestError, match="key-value cache of 64 tokens"):
            engine.submit(request(ids(60), max_tokens=20))
    finally:
        engine.close()


def test_a_failed_step_fails_its_requests_alone(target, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "specprefill.target.torch_target.causal_attention",
            lambda *_: (_ for _ in ()).throw(RuntimeError("boom")),
        )
        with pytest.raises(EngineError, match="boom"):
            list(target.submit(request(ids(20))))
    assert len(tokens_of(target.submit(request(ids(20))))) == 12


def test_sampling_that_breaks_fails_its_own_request_alone(target):
    """A penalty this small makes the logits infinite; another stream runs in the same steps."""
    other = target.submit(request(ids(20), name="other", max_tokens=60))
    first = next(other)
    broken = target.submit(
        request(ids(30), repetition_penalty=1e-44, top_p=1.0, temperature=1e-6, max_tokens=50)
    )
    with pytest.raises(EngineError, match="choosing a token failed"):
        list(broken)
    assert len([first, *other]) == 60


def test_closing_the_engine_ends_what_runs(tiny_llama):
    engine = TorchTarget(tiny_llama, SETTINGS)
    steps = engine.submit(request(ids(20), max_tokens=4000))
    next(steps)
    engine.close()
    with pytest.raises(RequestCancelledError):
        list(steps)
    with pytest.raises(EngineError, match="closed"):
        engine.submit(request(ids(20)))


@pytest.mark.parametrize(
    ("kept", "length", "message"),
    [
        ([], 0, "at least 1"),
        ([0, 1, 1, 4], 5, "strictly increasing"),
        ([3, 2, 4], 5, "strictly increasing"),
        ([-1, 4], 5, "non-negative"),
        ([0, 1, 2], 5, "last position id is 2"),
    ],
)
def test_positions_that_no_engine_may_get(target, kept, length, message):
    positions = np.array(kept, dtype=np.int32)
    bad = GenerationRequest(
        "b", np.zeros(len(kept), np.int32), positions, length, SamplingSettings(), frozenset()
    )
    with pytest.raises(EngineError, match=message):
        target.submit(bad)


def test_more_than_the_context_is_refused(target):
    with pytest.raises(InvalidRequestError, match=r"max_tokens: 100 after .* 8150 .* up to 42"):
        target.submit(request(ids(8150), max_tokens=100))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "gemma"])
def test_other_families_work_as_they_are(family, tmp_path):
    """Any causal LM of transformers: the same tokens as its own generate, dense."""
    from transformers import AutoConfig

    torch.manual_seed(1)
    window = {"sliding_window": 16} if family == "mistral" else {}
    config = AutoConfig.for_model(
        family,
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=None,
        **window,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = np.random.default_rng(3).integers(5, 290, 90).astype(np.int32)
    expected = model.generate(
        torch.from_numpy(tokens.astype(np.int64))[None],
        max_new_tokens=10,
        do_sample=False,
        pad_token_id=0,
    )[0, 90:]
    engine = TorchTarget(tmp_path, TargetSettings(dtype="float32", prefill_chunk_tokens=32))
    try:
        assert tokens_of(engine.submit(request(tokens, max_tokens=10))) == expected.tolist()
    finally:
        engine.close()
