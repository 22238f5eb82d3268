# SPDX-License-Identifier: Apache-2.0
"""gpu_check on a machine without a GPU: its logic, its reports, and that every check is listed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from build_engines.plan import make_plan
from gpu_check import checks_torch, needs, random_models
from gpu_check.__main__ import app
from gpu_check.bench import Bench, CheckFailedError, Options
from gpu_check.deployments import pruned_positions, small_settings
from gpu_check.needs import NEEDS
from gpu_check.registry import SUITES, Check, Outcome, all_checks, choose
from gpu_check.report import format_figure, print_results, write_report
from gpu_check.runner import exit_code, run_checks, run_here, run_in_own_process
from tests.unit.fake_checks import dying, failing, hanging, passing, raising, skipping

OPTIONS = Options(timeout_seconds=60)


def fake(body, *needed: str, name: str | None = None, group: str = "fake") -> Check:
    return Check(name or body.__name__, group, "torch", "a claim", needed, body)


def run(*checks: Check, run_group=run_here, options: Options = OPTIONS):
    return run_checks(checks, options, lambda _: None, run_group)


def outcomes(results):
    return [(result.check.name, result.outcome) for result in results]


def test_results_keep_the_order_and_say_why():
    results = run(fake(passing), fake(failing), fake(raising), fake(skipping))
    assert [result.outcome for result in results] == [
        Outcome.PASS,
        Outcome.FAIL,
        Outcome.FAIL,
        Outcome.SKIPPED,
    ]
    assert results[0].figures == {"speed": 1.23456}
    assert results[1].figures == {"error": 3}
    assert results[1].reason == "the error is too large"
    assert results[2].reason.startswith("RuntimeError: no such thing (raising, line ")
    assert results[3].reason == "it does not fit"


@pytest.mark.parametrize(
    ("bodies", "code"),
    [
        ([passing], 0),
        ([passing, skipping], 0),
        ([passing, failing], 1),
        ([skipping, raising], 1),
        ([skipping], 2),
        ([], 2),
    ],
)
def test_exit_codes(bodies, code):
    assert exit_code(run(*(fake(body) for body in bodies))) == code


def test_a_missing_need_skips_without_running(monkeypatch):
    monkeypatch.setitem(needs.NEEDS, "there", lambda _: None)
    monkeypatch.setitem(needs.NEEDS, "absent", lambda _: "nobody has it")
    results = run(fake(failing, "there", "absent"), fake(passing, "there"))
    assert outcomes(results) == [("failing", Outcome.SKIPPED), ("passing", Outcome.PASS)]
    assert results[0].reason == "nobody has it"


def test_a_crash_fails_one_check_and_the_rest_goes_on_in_a_fresh_process():
    results = run(fake(passing), fake(dying), fake(failing), run_group=run_in_own_process)
    assert outcomes(results) == [
        ("passing", Outcome.PASS),
        ("dying", Outcome.FAIL),
        ("failing", Outcome.FAIL),
    ]
    assert results[0].figures == {"speed": 1.23456}
    assert results[1].reason == "its process died with exit code 9"
    assert results[2].reason == "the error is too large"


def test_a_check_that_hangs_is_ended():
    options = Options(timeout_seconds=1)
    results = run(fake(hanging), run_group=run_in_own_process, options=options)
    assert outcomes(results) == [("hanging", Outcome.FAIL)]
    assert results[0].reason == "no result after 1 s"


class Heavy:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        log.append(f"open {name}")

    def close(self) -> None:
        self.log.append(f"close {self.name}")


def test_a_bench_holds_one_heavy_thing_at_a_time():
    bench, log = Bench(OPTIONS), []
    first = bench.hold("a", lambda: Heavy(log, "a"))
    assert bench.hold("a", lambda: Heavy(log, "again")) is first
    bench.hold("b", lambda: Heavy(log, "b"))
    folder = bench.new_folder()
    assert folder.is_dir()
    bench.close()
    assert log == ["open a", "close a", "open b", "close b"]
    assert not folder.exists()


def test_the_report_can_be_attached_to_a_bug(tmp_path):
    file = tmp_path / "new" / "report.json"
    write_report(file, "torch", run(fake(passing), fake(failing)))
    report = json.loads(file.read_text())
    assert report["suite"] == "torch"
    assert [one["outcome"] for one in report["results"]] == ["pass", "fail"]
    assert report["results"][1]["reason"] == "the error is too large"
    assert report["environment"]["versions"]["torch"]
    assert str(Path.home()) not in file.read_text()


def test_the_table_has_figures_and_reasons():
    console = Console(record=True, width=120)
    print_results(console, run(fake(passing), fake(failing)))
    text = console.export_text()
    assert "speed 1.235" in text
    assert "error 3; the error is too large" in text
    assert "1 pass, 1 fail, 0 skipped" in text
    assert format_figure(123456.0) == "1.235e+05"
    assert format_figure("word") == "word"


def test_every_check_has_a_name_of_its_own_and_known_needs():
    checks = all_checks()
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.suite in SUITES
        assert check.claim
        assert set(check.needs) <= NEEDS.keys()
    for suite in SUITES:
        assert len(choose(checks, suite, ())) > 5
    assert [check.name for check in choose(checks, "torch", ("bandwidth",))] == ["kernel bandwidth"]


def test_the_command_lists_its_checks():
    result = CliRunner().invoke(app, ["--list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for name in ("plugin over 10,000 shapes", "two ranks", "torch draft"):
        assert name in result.output


@pytest.mark.parametrize("suite", SUITES)
def test_without_a_gpu_every_check_is_skipped_with_a_reason(suite, tmp_path, monkeypatch):
    monkeypatch.setitem(needs.NEEDS, "cuda", lambda _: "no CUDA device")
    monkeypatch.setitem(needs.NEEDS, "tensorrt_llm", lambda _: "no TensorRT-LLM")
    report = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["--suite", suite, "--report", str(report)])
    assert result.exit_code == 2, result.output
    results = json.loads(report.read_text())["results"]
    assert {one["outcome"] for one in results} == {"skipped"}
    assert all(one["reason"] for one in results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "other"], "--suite: got other; allowed: tensorrt, torch"),
        (["--only", "nothing of that name"], "--only: no check"),
        (["--config", "missing.yaml"], "config file missing.yaml"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_the_small_deployment_can_be_planned(tmp_path):
    settings = small_settings(str(tmp_path), str(tmp_path), str(tmp_path / "engines"), 2)
    config = {
        **random_models.SMALL,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "head_dim": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = make_plan(settings, tmp_path / "engines")
    assert plan.target.world_size == 2
    # The check of chunked context needs prompts longer than one step.
    assert plan.target.max_num_tokens < plan.target.max_input_len


def test_the_torch_checks_run_with_the_cpu_in_place_of_the_gpu(monkeypatch):
    tiny = {
        **checks_torch.SMALL,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": 0.3,
    }
    monkeypatch.setattr(checks_torch, "SMALL", tiny)
    monkeypatch.setattr(checks_torch, "_GPU", "cpu")
    monkeypatch.setattr(checks_torch, "_PROMPT", 300)
    bodies = (
        checks_torch.draft_selects_the_same,
        checks_torch.target_answers_the_same,
        checks_torch.decoding_equals_generate,
    )
    for result in run(*(fake(body) for body in bodies)):
        assert result.outcome is Outcome.PASS, result.reason


def test_pruned_positions_keep_a_fifth_and_the_end():
    positions = pruned_positions(1000)
    assert 200 < len(positions) < 300
    assert positions[-64:].tolist() == list(range(936, 1000))
    assert np.all(np.diff(positions) > 0)


def test_a_failed_claim_is_an_exception_of_its_own():
    bench = Bench(OPTIONS)
    bench.require(True, "never said")
    with pytest.raises(CheckFailedError, match="so it is"):
        bench.require(False, "so it is")
