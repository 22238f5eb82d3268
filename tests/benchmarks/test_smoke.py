# SPDX-License-Identifier: Apache-2.0
"""Every figure's script runs, on a tiny model; its numbers mean nothing."""

import importlib
import json
from contextlib import contextmanager

import pytest
from specprefill.server import TritonServer

from benchmarks.__main__ import measure_figure
from benchmarks.deployments import deployment
from benchmarks.figures import FIGURES
from benchmarks.options import Options
from benchmarks.report import write_page

SERVED = ("ttft", "targets", "breakdown", "qps", "startup", "memory")


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(smoke=True, output=tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def server(options):
    with TritonServer(deployment(options)) as server:
        yield server


@pytest.fixture
def one_server(server, monkeypatch):
    """Let every script that starts a server find this one, a real one, already started."""

    @contextmanager
    def started(settings):
        yield server

    for name in SERVED:
        monkeypatch.setattr(importlib.import_module(f"benchmarks.{name}"), "TritonServer", started)


@pytest.fixture(scope="module")
def measured(options):
    return {}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_measured(name, options, one_server, measured):
    result = json.loads(measure_figure(name, options).read_text())
    assert result["smoke"] is True
    assert result["figure"] == name
    measured[name] = result["data"]


def test_ttft_pairs_dense_and_sparse(measured):
    for row in measured["ttft"]["rows"]:
        assert 0 < row["kept_tokens"] < row["prompt_tokens"]
        dense, sparse = row["dense"]["median"], row["sparse"]["median"]
        assert row["ratio"]["median"] == pytest.approx(dense / sparse)
        assert row["ideal_ratio"] == pytest.approx(row["ideal_dense"] / row["ideal_sparse"])
    served = [row for row in measured["ttft"]["rows"] if "ensemble" in row]
    assert served


def test_the_parts_add_up_to_the_whole(measured):
    for row in measured["breakdown"]["rows"]:
        parts = {name: spread["median"] for name, spread in row["parts"].items()}
        assert sum(parts.values()) == pytest.approx(row["ttft"]["median"], rel=0.25, abs=5e-3)
        assert all(seconds >= 0 for seconds in parts.values())
        look_ahead = parts["look-ahead"]
        assert look_ahead > 0 if "look-ahead" in row["way"] else look_ahead == 0


def test_both_ways_of_scoring_agree(measured):
    for row in measured["scoring"]["rows"]:
        ours, theirs = row["observer"]["checksum"], row["whole tensors"]["checksum"]
        assert ours["median"] == pytest.approx(theirs["median"], rel=1e-4)


def test_the_server_answered_the_load(measured):
    data = measured["qps"]
    assert {row["way"] for row in data["runs"]} == {"dense", "sparse"}
    assert all(row["counts"]["error"] == 0 for row in data["runs"])


def test_the_page_shows_every_figure(options, measured):
    assert set(measured) == set(FIGURES)
    page = write_page(options.output, options.output / "benchmarks.md", options.output)
    text = page.read_text()
    assert "Not measured yet" not in text
    assert text.count("A test of the script") == len(FIGURES)
    for name in set(FIGURES) - {"startup"}:
        assert 0 < (options.output / f"bench-{name}.png").stat().st_size < 100_000
