# SPDX-License-Identifier: Apache-2.0
"""Sampling against transformers' own logits processors."""

import pytest
import torch
from specprefill.settings import SamplingSettings
from specprefill.target import sampling
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCABULARY = 500
PROMPT = torch.tensor([3, 7, 7, 9])
GENERATED = torch.tensor([7, 11, 11, 11])


def logits(seed=0):
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_repetition_penalty(penalty):
    row = logits()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.cat((PROMPT, GENERATED))[None], row[None].clone()
    )[0]
    actual = sampling.penalize(row, PROMPT, GENERATED, SamplingSettings(repetition_penalty=penalty))
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(row, logits())  # the caller's row is untouched


def test_presence_and_frequency_count_generated_tokens_alone():
    settings = SamplingSettings(presence_penalty=0.5, frequency_penalty=0.25)
    change = sampling.penalize(logits(), PROMPT, GENERATED, settings) - logits()
    assert change[7] == pytest.approx(-0.75, abs=1e-6)
    assert change[11] == pytest.approx(-1.25, abs=1e-6)
    assert change[[3, 9, 100]].abs().max() == 0


@pytest.mark.parametrize("top_k", [1, 2, 50, 499, 500, 9000])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_restrictions(top_k, top_p, temperature):
    row = logits(top_k)
    expected = TemperatureLogitsWarper(temperature)(None, row[None])
    expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    actual = sampling.restrict(row / temperature, top_k, top_p)
    torch.testing.assert_close(actual, expected[0])


def test_forbidden_tokens_as_min_new_tokens_does():
    processor = MinNewTokensLengthLogitsProcessor(0, 5, [2, 4])
    expected = processor(torch.ones(1, 1).long(), logits()[None])
    torch.testing.assert_close(sampling.forbid(logits(), (2, 4)), expected[0])


@pytest.mark.parametrize(
    ("settings", "greedy"),
    [
        ({}, True),
        ({"temperature": 0.7}, True),  # as in TensorRT-LLM: only top_k or top_p turns sampling on
        ({"top_k": 1, "top_p": 0.5}, True),
        ({"temperature": 0, "top_p": 0.9}, True),
        ({"top_p": 0.9}, False),
        ({"top_k": 40}, False),
        ({"top_p": 1.0}, False),
    ],
)
def test_when_sampling_happens(settings, greedy):
    assert SamplingSettings(**settings).greedy is greedy


def test_samples_follow_the_distribution():
    row = torch.tensor([0.0, 1.0, 2.0, -50.0])
    settings = SamplingSettings(top_p=1.0)
    generator = torch.Generator().manual_seed(5)
    draws = torch.tensor([sampling.choose(row, settings, generator) for _ in range(4000)])
    frequency = torch.bincount(draws, minlength=4) / 4000
    torch.testing.assert_close(frequency, row.softmax(-1), atol=0.03, rtol=0)


def test_greedy_takes_the_largest():
    assert sampling.choose(logits(), SamplingSettings(), torch.Generator()) == logits().argmax()
