# SPDX-License-Identifier: Apache-2.0
"""The page says what the results say, and what was not measured."""

import json
import time

import pytest
from specprefill import cli
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.report import value, write_page
from benchmarks.results import ratios, spread
from benchmarks.rounds import run_rounds


class NoProgress:
    """Progress that shows nothing."""

    def add_task(self, *_, **__):
        return 0

    def update(self, *_, **__):
        pass

    advance = update


def result(figure, data, smoke=False):
    return {
        "figure": figure,
        "created": "2026-01-02T03:04:05+00:00",
        "smoke": smoke,
        "device": "cpu",
        "config": "smollm2-cpu.yaml",
        "seconds": 12.0,
        "machine": {
            "processor": "Some CPU",
            "cores": 2,
            "memory_gib": 8.0,
            "instructions": "AVX2",
            "threads": 2,
            "gpu": None,
            "load_before": 0.1,
        },
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "data": data,
    }


TARGETS = {
    "rows": [
        {
            "target": "grown:smollm2-x4",
            "remark": "grown x4",
            "draft_kind": "early exit",
            "prompt_tokens": 1480,
            "kept_tokens": 301,
            "dense": spread([20.0, 22.0, 21.0]),
            "sparse": spread([7.0, 7.0, 7.0]),
            "draft": spread([2.0, 2.0, 2.0]),
            "ratio": ratios([20.0, 22.0, 21.0], [7.0, 7.0, 7.0]),
            "ideal_ratio": 4.0,
            "ideal_dense": 16.0,
            "ideal_sparse": 4.0,
        }
    ]
}


def write(folder, name, data):
    (folder / f"{name}.json").write_text(json.dumps(result(name, data)))


def test_without_results_every_figure_says_so(tmp_path):
    text = write_page(tmp_path, tmp_path / "page.md", tmp_path).read_text()
    for name in command.FIGURES:
        assert f"Not measured yet: `specprefill bench {name}`." in text
    assert not list(tmp_path.glob("*.png"))


def test_a_figure_without_a_result_keeps_its_section(tmp_path):
    page = tmp_path / "page.md"
    write(tmp_path, "targets", TARGETS)
    before = write_page(tmp_path, page, tmp_path / "images").read_text()
    (tmp_path / "targets.json").unlink()
    assert write_page(tmp_path, page, tmp_path / "images").read_text() == before


def test_a_result_becomes_a_row_with_medians_extremes_and_share_of_the_ideal(tmp_path):
    write(tmp_path, "targets", TARGETS)
    text = write_page(tmp_path, tmp_path / "page.md", tmp_path / "images").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| grown:smollm2-x4"))
    assert "(grown x4)" in row
    assert "21.00 s (20.00-22.00)" in row
    assert "| 3.00 (2.86-3.14) | 4.00 | 75% |" in row
    assert "Some CPU, 2 cores (AVX2), 2 threads, load 0.1 before" in text
    assert "](images/bench-targets.png)" in text
    assert "no measurement" not in text


def test_a_goal_is_judged_by_what_was_measured(tmp_path):
    ratio = {"median": 4.9, "min": 4.9, "max": 4.9, "n": 1}
    rows = [
        TARGETS["rows"][0] | {"draft_kind": draft, "ratio": ratio, "keep_rate": 0.1}
        for draft in ("16 layers", "look-ahead")
    ]
    write(tmp_path, "largest", {"rows": rows})
    title = "A long prompt and a large target"
    assert f"look-ahead draft: at least 5 x | {title} | 4.90 x | **no** |" in goals_of(tmp_path)
    assert "| Where the time goes |  | not measured in this run |" in goals_of(tmp_path)
    rows[1]["ratio"] = dict.fromkeys(("median", "min", "max"), 5.1) | {"n": 1}
    write(tmp_path, "largest", {"rows": rows})
    assert f"| {title} | 5.10 x | yes |" in goals_of(tmp_path)


def goals_of(folder):
    page = write_page(folder, folder / "page.md", folder).read_text()
    return page[page.index("## Goals") : page.index("## The cost model")]


def test_the_papers_ratios_lie_within_ten_percent_of_the_cost_model(tmp_path):
    text = write_page(tmp_path, tmp_path / "page.md", tmp_path).read_text()
    table = text[text.index("| kept |") :].splitlines()[2:6]
    shares = [float(row.split("|")[4].strip(" %")) for row in table]
    assert len(shares) == 4
    assert all(90 <= share <= 100 for share in shares)


def test_one_repeat_has_no_extremes():
    assert value(spread([1.5]), unit="s") == "1.50 s"


def test_ratios_compare_neighbours():
    assert ratios([10.0, 30.0], [5.0, 10.0]) == {"median": 2.5, "min": 2.0, "max": 3.0, "n": 2}


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (0.2, 4), (60.0, 5)])
def test_whole_rounds_are_repeated_within_the_time(seconds, rounds):
    order = []

    def cell(name):
        def run():
            order.append(name)
            time.sleep(0.022)
            return {"x": 1.0}

        return run

    samples = run_rounds({"a": cell("a"), "b": cell("b")}, seconds, NoProgress(), "")
    count = len(samples["a"]["x"])
    assert order == ["a", "b"] * count
    assert count == len(samples["b"]["x"])
    assert abs(count - rounds) <= (1 if seconds == 0.2 else 0)


def run_command(*arguments):
    return CliRunner().invoke(command.app, list(arguments))


def test_all_figures_run_on_their_own_and_recent_ones_are_kept(tmp_path, monkeypatch):
    ran = []

    def fake_run(arguments, **_):
        ran.append(arguments[3])
        return type("Done", (), {"returncode": int(arguments[3] == "qps")})()

    monkeypatch.setattr(command.subprocess, "run", fake_run)
    write(tmp_path, "targets", TARGETS)
    outcome = run_command("--output", str(tmp_path), "--smoke")
    assert outcome.exit_code == 1
    assert "failed: qps" in outcome.output
    assert ran == [name for name in command.FIGURES if name != "targets"]
    ran.clear()
    run_command("--output", str(tmp_path), "--smoke", "--force")
    assert ran == list(command.FIGURES)
    assert "3.00 (2.86-3.14)" in (tmp_path / "benchmarks.md").read_text()


def test_an_unknown_figure_is_refused():
    outcome = run_command("speed")
    assert outcome.exit_code == 2
    assert "no figure" in outcome.output


def test_the_command_line_has_the_benchmarks():
    outcome = CliRunner().invoke(cli.app, ["bench", "--help"])
    assert outcome.exit_code == 0
    assert "--peer-python" in outcome.output


def test_a_plan_for_rates_shows_both_ways_and_the_gain(tmp_path):
    run = {"sent_rate": 0.2, "requests": 10, "ttft_p50": 4.0, "counts": {"ok": 10}, "broken": None}
    data = {
        "target": "grown:smollm2-x4",
        "remark": "grown x4",
        "keep_rate": 0.2,
        "bound_seconds": 18.0,
        "bound_multiple": 4.0,
        "percent": 90,
        "alone": {"dense": 4.5, "sparse": 2.0},
        "runs": [
            {**run, "way": "dense", "rate": 0.11, "ttft_p90": 9.0},
            {**run, "way": "sparse", "rate": 0.22, "ttft_p90": 6.0},
            {
                **run, "way": "sparse", "rate": 0.44, "ttft_p90": None,
                "broken": "2 timeouts and 0 busy refusals, tolerated: 0",
            },
        ],
        "highest": {"dense": 0.11, "sparse": 0.22},
        "unfinished": ["dense"],
    }  # fmt: skip
    write(tmp_path, "qps", data)
    text = write_page(tmp_path, tmp_path / "page.md", tmp_path).read_text()
    assert "dense 0.110, sparse 0.220 requests per second, 2.00 times." in text
    assert "The time ended before dense broke it." in text
    assert "| sparse | 0.440 | 10 | 4.0 s | - | 2 timeouts" in text
