# SPDX-License-Identifier: Apache-2.0
"""The metrics page, the dashboard and docs/monitoring.md name the same metrics."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from specprefill.cause import Cause

from tests.serving.conftest import generate

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "monitoring.md").read_text()
DASHBOARD = (DOCS / "monitoring" / "grafana-dashboard.json").read_text()
NAME = r"specprefill_[a-z_]+"
OF_THE_GATEWAY = "specprefill_gateway_"


def read_page(server) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        return response.read().decode()


def families(page: str) -> dict[str, str]:
    """Our families on a metrics page -> their kind."""
    return dict(re.findall(rf"^# TYPE ({NAME}) (\w+)$", page, re.MULTILINE))


def samples(page: str) -> dict[str, float]:
    """Our samples on a metrics page, by name and labels."""
    found = re.findall(rf"^({NAME}(?:\{{.*\}})?) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def documented() -> dict[str, str]:
    """The server's families in the first table of docs/monitoring.md -> their kind."""
    rows = re.findall(r"^\| (`specprefill_.*?) \| (\w+) \|", PAGE, re.MULTILINE)
    pairs = [(name, kind) for names, kind in rows for name in re.findall(NAME, names)]
    assert len(pairs) == len(dict(pairs)), "a metric is documented twice"
    return {name: kind for name, kind in pairs if not name.startswith(OF_THE_GATEWAY)}


@pytest.fixture(scope="module")
def page(server, messages) -> str:
    """The page after a sparse and a dense request."""
    generate(server, "specprefill", messages=messages, max_tokens=1, keep_rate=0.31)
    generate(server, "specprefill", text_input="The capital of France is", max_tokens=1)
    return read_page(server)


def test_the_page_and_the_docs_agree_on_every_metric_and_its_kind(page):
    assert families(page) == documented()


def test_the_dashboard_shows_only_what_is_on_the_page(page):
    shown = set(re.findall(NAME, DASHBOARD))
    assert len(shown) > 10
    on_page = {re.sub(r"\{.*", "", name) for name in samples(page)}
    assert shown <= on_page
    for panel in json.loads(DASHBOARD)["panels"]:
        for target in panel["targets"]:
            assert re.search(NAME, target["expr"]), target


def test_requests_have_the_documented_labels_before_they_count(page):
    table = re.findall(r"^\| `(\w+)` \| \w+ (?!\|)", PAGE.partition("| `reason` |")[2], re.M)
    assert table == [cause.value for cause in Cause]
    labels = {name for name in samples(page) if name.startswith("specprefill_requests{")}
    assert labels == {
        f'specprefill_requests{{prefill="{"sparse" if reason == "pruned" else "dense"}",'
        f'reason="{reason}"}}'
        for reason in table
    }


def test_requests_count_once_under_their_reason(server, page, messages):
    before = samples(read_page(server))
    generate(server, "ensemble", messages=messages, max_tokens=1, keep_rate=1.0)
    answer = generate(server, "specprefill", messages=messages, max_tokens=1, keep_rate=0.32)
    after = samples(read_page(server))
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}

    assert grown['specprefill_requests{prefill="sparse",reason="pruned"}'] == 1
    assert grown['specprefill_requests{prefill="dense",reason="keep_all"}'] == 1
    assert sum(v for n, v in grown.items() if n.startswith("specprefill_requests{")) == 2
    prompt, kept = answer["prompt_tokens"], answer["kept_tokens"]
    assert grown["specprefill_prompt_tokens"] == 2 * prompt
    assert grown["specprefill_kept_tokens"] == prompt + kept
    assert grown["specprefill_dropped_tokens"] == prompt - kept > 0
    for name in ("ttft", "queue", "target_prefill"):
        assert grown[f"specprefill_{name}_seconds_count"] == 2
    assert grown["specprefill_draft_seconds_count"] == 1
    assert "specprefill_draft_failures" not in grown
