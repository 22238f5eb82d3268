# SPDX-License-Identifier: Apache-2.0
"""The gate on a real server: what it measures at the start decides."""

import json

from specprefill.cli import default_config
from specprefill.demo import demo_messages
from specprefill.server import TritonServer
from specprefill.settings import load_settings

from tests.serving.conftest import FREE_PORTS, generate, metric


def test_a_draft_as_big_as_the_target_is_left_alone(tmp_path):
    paper = default_config().with_name("smollm2-paper.yaml")
    gate = {"enabled": True, "costs_folder": str(tmp_path)}
    chosen = load_settings(paper, {"server": FREE_PORTS, "gate": gate}, environment={})
    messages = demo_messages(40)
    with TritonServer(chosen) as server:
        answer = generate(server, "specprefill", messages=messages, max_tokens=2, keep_rate=0.5)
        assert answer["active"] is False
        assert answer["reason"].startswith("dense: pruning would not pay, ")
        assert answer["draft_ms"] == 0
        assert metric(server, "specprefill_requests") == 1
        answer = generate(server, "ensemble", messages=messages, max_tokens=2, keep_rate=0.5)
        assert answer["active"] is False
    costs = [json.loads(file.read_text()) for file in tmp_path.glob("*-cost.json")]
    assert len(costs) == 2
    assert all(cost["seconds_per_operation"] > 0 for cost in costs)
