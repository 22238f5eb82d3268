# SPDX-License-Identifier: Apache-2.0
"""`specprefill plan`."""

from pathlib import Path

import pytest
from specprefill import cli
from specprefill.errors import SpecPrefillError
from specprefill.gpus import GPUS
from specprefill.plan import PlanRequest, plan_memory, plan_times
from typer.testing import CliRunner

MODELS = Path(__file__).parent / "data" / "models"
PAPER = ("--target", "llama-3.1-405b", "--draft", "llama-3.1-8b", "--prompt", "8192")
EIGHT = ("--gpu", "h200", "--gpus", "8", "--draft-gpus", "8", "--fp8")


def plan(*arguments):
    return CliRunner().invoke(cli.app, ["plan", *arguments], env={"COLUMNS": "160"})


def test_the_papers_deployment():
    outcome = plan(*PAPER, *EIGHT, "--keep", "0.1")
    assert outcome.exit_code == 0, outcome.output
    row = next(line for line in outcome.output.splitlines() if "10%" in line and "ms" in line)
    ratio = plan_times(
        PlanRequest("llama-3.1-405b", "llama-3.1-8b", 8192, 0.1, "h200", 8, 8, True), 0.1
    ).ratio
    assert f"{ratio:.2f}" in row
    assert 0.9 * ratio < 6.69 < ratio
    assert "target weights" in outcome.output


def test_a_folder_is_as_good_as_a_name():
    by_name = PlanRequest("llama-3.1-8b", "llama-3.2-1b", 8192, 0.2)
    by_folder = PlanRequest(str(MODELS / "llama-3.1-8b"), str(MODELS / "llama-3.2-1b"), 8192, 0.2)
    assert plan_times(by_name, 0.2) == plan_times(by_folder, 0.2)
    assert plan_memory(by_name) == plan_memory(by_folder)


def test_what_does_not_fit_is_told_below_the_times():
    outcome = plan("--target", "llama-3.1-70b", "--draft", "llama-3.1-8b")
    assert outcome.exit_code == 0
    assert "It does not fit" in outcome.output
    assert "ratio" in outcome.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--gpu", "abacus"), "gpu: got 'abacus'; allowed: a100-80gb, h100, h200, l40s"),
        (("--gpu", "a100-80gb", "--fp8"), "fp8: a100-80gb has no FP8"),
        (("--gpus", "3"), "gpus: got 3; allowed: a divisor of 128 query heads"),
        (("--gpus", "8", "--draft-gpus", "16"), "draft_gpus: got 16; allowed: up to gpus, 8"),
        (("--keep", "0"), "keep: got 0.0"),
        (("--prompt", "0"), "prompt: got 0"),
        (("--look-ahead", "0"), "look_ahead: got 0"),
    ],
)
def test_bad_values_name_the_field(arguments, problem):
    outcome = plan(*PAPER, *arguments)
    assert isinstance(outcome.exception, SpecPrefillError)
    assert problem in str(outcome.exception)


def test_unknown_models_are_refused():
    outcome = plan("--target", "gpt-9", "--draft", "llama-3.1-8b")
    assert isinstance(outcome.exception, SpecPrefillError)
    assert "neither a folder with a config.json nor one of" in str(outcome.exception)


def test_all_gpus_have_sane_numbers():
    for gpu in GPUS.values():
        assert 1e14 < gpu.rates.linear < 1e15
        assert gpu.rates.attention == gpu.rates.linear
        assert 0.5e12 < gpu.rates.bandwidth < 1e13
