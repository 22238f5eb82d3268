# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from specprefill.quality.probe import TargetProbe, divergence
from specprefill.settings import SamplingSettings, TargetSettings
from specprefill.target.base import GenerationRequest
from specprefill.target.torch_target import TorchTarget
from transformers import AutoModelForCausalLM, DynamicCache

SETTINGS = TargetSettings(dtype="float32", prefill_chunk_tokens=100)
LENGTH = 333


@pytest.fixture(scope="module")
def probe(tiny_llama):
    return TargetProbe(tiny_llama, SETTINGS)


@pytest.fixture(scope="module")
def prompt():
    return np.random.default_rng(1).integers(10, 40_000, LENGTH).astype(np.int32)


def kept_tokens(share):
    keep = np.random.default_rng(2).random(LENGTH) < share
    keep[-1] = True
    return np.flatnonzero(keep).astype(np.int32)


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_forced_log_probs_are_those_of_transformers(probe, tiny_llama, prompt, share):
    reference = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    kept = kept_tokens(share)
    continuation = [11, 500, 7, 3000]
    probe.prefill(prompt[kept], kept, LENGTH, 16)
    probe.answer(5)  # must leave nothing behind
    ours = probe.forced_log_probs(continuation)
    sequence = torch.tensor([*prompt[kept], *continuation[:-1]])[None]
    positions = torch.tensor([*kept, *range(LENGTH, LENGTH + 3)])[None]
    with torch.inference_mode():
        logits = reference(
            sequence, position_ids=positions, cache=DynamicCache(), use_cache=True
        ).logits[0, len(kept) - 1 :]
    torch.testing.assert_close(ours, torch.log_softmax(logits, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_answers_are_those_of_the_torch_target(probe, tiny_llama, prompt, share):
    kept = kept_tokens(share)
    target = TorchTarget(tiny_llama, SETTINGS)
    sampling = SamplingSettings(max_tokens=12)
    request = GenerationRequest("r", prompt[kept], kept, LENGTH, sampling, target.stop_token_ids)
    expected = [step.token_id for step in target.submit(request) if step.token_id is not None]
    target.close()
    probe.prefill(prompt[kept], kept, LENGTH, 12)
    assert probe.answer(12) == expected
    assert probe.answer(12) == expected  # from the same prefill again


def test_no_continuation_gives_the_first_tokens_distribution(probe, prompt):
    kept = kept_tokens(0.5)
    probe.prefill(prompt[kept], kept, LENGTH, 4)
    (first,) = probe.forced_log_probs([])
    assert int(first.argmax()) == probe.answer(1)[0]
    torch.testing.assert_close(first, probe.forced_log_probs([5, 6])[0])


def test_divergence_of_known_distributions():
    dense = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    sparse = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    torch.testing.assert_close(divergence(dense, sparse), torch.tensor([expected, 0.0]))


def test_divergence_survives_half_precision_storage(probe, prompt):
    kept = kept_tokens(1.0)
    probe.prefill(prompt[kept], kept, LENGTH, 4)
    dense = probe.forced_log_probs([5, 6])
    assert float(divergence(dense.half(), dense).abs().max()) < 2e-3
