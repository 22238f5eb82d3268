# SPDX-License-Identifier: Apache-2.0
"""Everything that the adapters and the double use of TensorRT-LLM is in trtllm_api.json."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import fake_tensorrt_llm
import pytest
from fake_tensorrt_llm import api, session
from specprefill.draft import trtllm_draft
from specprefill.target import trtllm_target

PREFIX = "tensorrt_llm.bindings.executor."
EXECUTOR = {
    name.removeprefix(PREFIX): facts
    for name, facts in api.FACTS["symbols"].items()
    if name.startswith(PREFIX)
}
SESSION = api.FACTS["symbols"]["tensorrt_llm.runtime.Session"]


def calls(module: Any, owner: str) -> list[tuple[str, list[str]]]:
    """Find `<owner>.<name>(..., keyword=...)` in a module: names with their keywords."""
    tree = ast.parse(Path(module.__file__).read_text())
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if ast.unparse(node.func.value) in (owner, f"self._{owner}"):
            found.append((node.func.attr, [k.arg for k in node.keywords if k.arg]))
    return found


def attributes(module: Any, owner: str) -> set[str]:
    """Find `<owner>.<name>` in a module."""
    tree = ast.parse(Path(module.__file__).read_text())
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (owner, f"self._{owner}")
    }


def first_overload(params: list[Any]) -> list[str]:
    return params[0] if params and isinstance(params[0], list) else params


def test_classes_and_keywords_of_the_target() -> None:
    found = calls(trtllm_target, "api")
    assert {"Request", "OutputConfig", "ExecutorConfig", "Executor"} <= {name for name, _ in found}
    for name, keywords in found:
        facts = EXECUTOR[name]
        params = facts.get("params") or facts["overloads"][0]
        assert set(keywords) <= set(params), name
    for name in attributes(trtllm_target, "api"):
        assert name in EXECUTOR


def test_methods_of_the_executor() -> None:
    found = calls(trtllm_target, "executor")
    methods = EXECUTOR["Executor"]["methods"]
    assert {"enqueue_request", "await_responses", "cancel_request"} <= {name for name, _ in found}
    for name, keywords in found:
        assert set(keywords) <= set(first_overload(methods[name])), name


@pytest.mark.parametrize(
    ("owner", "fields"),
    [
        ("response", EXECUTOR["Response"]["fields"]),
        ("result", EXECUTOR["Result"]["fields"]),
        ("metrics", EXECUTOR["RequestPerfMetrics"]["fields"]),
        ("times", EXECUTOR["RequestPerfMetrics"]["nested"]["timing_metrics"]),
        ("last", EXECUTOR["IterationStats"]["fields"]),
        ("cache", EXECUTOR["IterationStats"]["nested"]["kv_cache_stats"]),
    ],
)
def test_fields_that_the_target_reads(owner: str, fields: list[str]) -> None:
    read = attributes(trtllm_target, owner)
    assert read
    assert read <= {field.removesuffix("()") for field in fields}


def test_enumerations_of_the_target() -> None:
    assert set(trtllm_target._FINISH_REASONS) <= set(EXECUTOR["FinishReason"]["values"])
    for owner in ("CapacitySchedulerPolicy", "CommunicationType", "CommunicationMode", "ModelType"):
        used = attributes(trtllm_target, f"api.{owner}")
        assert used
        assert used <= set(EXECUTOR[owner]["values"])


def test_methods_and_keywords_of_the_session() -> None:
    found = [*calls(trtllm_draft, "session"), *calls(trtllm_draft, "runtime.Session")]
    methods = {name.partition(" ")[0]: params for name, params in SESSION["methods"].items()}
    assert {"from_serialized_engine", "set_shapes", "run"} == {name for name, _ in found}
    for name, keywords in found:
        assert set(keywords) <= set(methods[name])
    assert attributes(trtllm_draft, "session") <= {*methods, *SESSION["fields"]}


def test_engine_inputs_of_the_draft() -> None:
    known = {fact["name"]: fact["dtype"] for fact in api.FACTS["engine_inputs"]}
    ours = {name: str(dtype) for name, dtype in trtllm_draft._STEP_INPUTS.items()}
    assert ours.pop("scoring_query_index") == "torch.int32"
    assert ours == {
        name: f"torch.{dtype}"
        for name, dtype in known.items()
        if name in ours or name.startswith("host_context")
    }
    on_host = {fact["name"] for fact in api.FACTS["engine_inputs"] if fact["location"] == "host"}
    for name in ours:
        assert name.startswith("host_") == (name in on_host)


def test_double_has_the_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings: Any = fake_tensorrt_llm.install(monkeypatch).bindings
    executor = bindings.Executor
    assert list(inspect.signature(executor).parameters) == EXECUTOR["Executor"]["overloads"][0]
    for name, params in EXECUTOR["Executor"]["methods"].items():
        method = getattr(executor, name, None)
        if method is not None:
            names = list(inspect.signature(method).parameters)[1:]
            assert names == first_overload(params), name
    for name in ("set_shapes", "run"):
        method = session.Session.__dict__[name]
        assert list(inspect.signature(method).parameters)[1:] == SESSION["methods"][name]


def test_double_refuses_what_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings: Any = fake_tensorrt_llm.install(
        monkeypatch, without=frozenset({"cache_salt_id"})
    ).bindings
    with pytest.raises(TypeError):
        bindings.Request([1], 1, positions=[0])
    with pytest.raises(TypeError):
        bindings.Request([1], 1, cache_salt_id=1)
    with pytest.raises(TypeError):
        bindings.Request([1], 1, True)  # streaming is keyword only
    with pytest.raises(TypeError):
        bindings.Request([1])
    with pytest.raises(AttributeError):
        bindings.Result(tokens=[])
    assert bindings.Request([1], max_tokens=1).position_ids is None
