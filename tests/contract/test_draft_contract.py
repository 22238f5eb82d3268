# SPDX-License-Identifier: Apache-2.0
"""What every draft engine promises, checked on torch and on TensorRT-LLM's double."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_tensorrt_llm
import numpy as np
import pytest
import torch
from conftest import ENGINES, MAX_PROMPT, QUERY_WINDOW, SCORE_LAYERS, VOCABULARY
from conftest import write_engine_folder as write
from specprefill.draft import trtllm_draft
from specprefill.draft.base import DraftEngine
from specprefill.draft.torch_draft import TorchDraft
from specprefill.draft.trtllm_draft import TrtllmDraft
from specprefill.errors import ConfigurationError, EngineError, RequestCancelledError
from specprefill.explicit_rotary import loader
from specprefill.observer import AttentionObserver
from specprefill.scoring import make_rule
from specprefill.settings import DraftSettings, SelectionSettings, TensorRTSettings

RULES: list[dict[str, Any]] = [
    {"scorer": "lookahead", "look_ahead": 5},
    {"scorer": "lookahead", "look_ahead": 1},
    {"scorer": "zscore", "query_window": 16},
    {"scorer": "zscore", "query_window": 3, "pool_kernel": 1},
    {"scorer": "zscore", "pooling": "max"},
    {"scorer": "window", "query_window": 16},
    {"scorer": "single_layer", "single_layer": 2},
]


def prompt(length: int, text: int = 1) -> np.ndarray:
    return np.random.default_rng(text).integers(1, VOCABULARY - 10, length).astype(np.int32)


def observe(
    draft: DraftEngine, ids: np.ndarray, rule: dict[str, Any], **options: Any
) -> torch.Tensor:
    observer = AttentionObserver(make_rule(SelectionSettings(**rule)), len(ids), SCORE_LAYERS)
    draft.observe(ids, observer, **options)
    return observer.importance()


@pytest.fixture(scope="session")
def torch_draft(model_folder: Path) -> TorchDraft:
    return TorchDraft(model_folder, DraftSettings(dtype="float32"))


MakeDraft = Callable[..., TrtllmDraft]


@pytest.fixture
def make_draft(
    double: fake_tensorrt_llm.Double, model_folder: Path, engine_folder: Path, tmp_path: Path
) -> MakeDraft:
    """Make a TensorRT-LLM draft; `engine` and `limits` change the engine that was built."""

    def make(
        settings: dict[str, Any] | None = None,
        selection: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        **limits: int,
    ) -> TrtllmDraft:
        folder = engine_folder
        if engine or limits:
            folder = write(tmp_path, model_folder, engine, **limits)
        return TrtllmDraft(
            model_folder,
            DraftSettings(**(settings or {})),
            TensorRTSettings(engine_dir=str(folder)),
            SelectionSettings(**(selection or {})),
        )

    return make


@pytest.fixture(params=ENGINES)
def draft(request: pytest.FixtureRequest) -> DraftEngine:
    if request.param == "torch":
        return request.getfixturevalue("torch_draft")
    return request.getfixturevalue("make_draft")()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 9, 120, MAX_PROMPT - 5])
def test_importance_is_the_same(
    torch_draft: TorchDraft, make_draft: MakeDraft, rule: dict[str, Any], length: int
) -> None:
    ids = prompt(length)
    importance = observe(make_draft(), ids, rule)
    assert importance.shape == (length,)
    torch.testing.assert_close(importance, observe(torch_draft, ids, rule), atol=1e-5, rtol=1e-4)


def test_prompts_do_not_see_each_other(draft: DraftEngine) -> None:
    rule = RULES[0]
    long, short = prompt(150), prompt(40, text=2)
    alone = observe(draft, long, rule)
    observe(draft, short, rule)
    again = observe(draft, long, rule)
    torch.testing.assert_close(again, alone, atol=0, rtol=0)


def test_look_ahead_ends_at_a_stop_token(
    double: fake_tensorrt_llm.Double,
    torch_draft: TorchDraft,
    make_draft: MakeDraft,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = prompt(50)
    trtllm_draft = make_draft()
    whole = observe(trtllm_draft, ids, RULES[0])
    assert double.sessions[0].steps == 5
    everything = frozenset(range(VOCABULARY))
    monkeypatch.setattr(trtllm_draft, "_stop_ids", everything)
    monkeypatch.setattr(torch_draft, "_stop_ids", everything)
    stopped = observe(trtllm_draft, ids, RULES[0])
    assert double.sessions[0].steps == 6
    torch.testing.assert_close(stopped, observe(torch_draft, ids, RULES[0]))
    ignoring = observe(trtllm_draft, ids, {**RULES[0], "ignore_eos": True})
    torch.testing.assert_close(ignoring, whole)


def test_too_long_a_prompt_is_refused(draft: DraftEngine) -> None:
    with pytest.raises(EngineError, match="reads at most"):
        observe(draft, prompt(draft.context_length + 1), RULES[2])


@pytest.mark.parametrize("after", [0, 1])
def test_cancelling_ends_the_reading(draft: DraftEngine, after: int) -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > after

    with pytest.raises(RequestCancelledError):
        observe(draft, prompt(50), RULES[0], cancelled=cancelled)


def test_context_length_is_what_one_pass_takes(make_draft: MakeDraft) -> None:
    assert make_draft().context_length == MAX_PROMPT
    assert make_draft(max_num_tokens=100).context_length == 100


def test_look_ahead_has_to_fit_the_cache(make_draft: MakeDraft) -> None:
    draft = make_draft(max_seq_len=100, max_input_len=99)
    observe(draft, prompt(96), RULES[0])
    with pytest.raises(EngineError, match="look-ahead"):
        observe(draft, prompt(97), RULES[0])


def test_more_queries_than_the_engine_gives_fail_the_request_alone(make_draft: MakeDraft) -> None:
    draft = make_draft()
    with pytest.raises(EngineError, match="query_window"):
        observe(draft, prompt(50), {"scorer": "zscore", "query_window": QUERY_WINDOW + 1})


@pytest.mark.parametrize("scorer", ["zscore", "window"])
def test_default_query_window_has_to_fit_the_engine(make_draft: MakeDraft, scorer: str) -> None:
    with pytest.raises(ConfigurationError, match=r"selection\.query_window"):
        make_draft(selection={"scorer": scorer, "query_window": QUERY_WINDOW + 1})


def test_a_layer_that_is_not_exported_fails_the_start_or_the_request_alone(
    make_draft: MakeDraft,
) -> None:
    single = {"scorer": "single_layer", "single_layer": 0}
    with pytest.raises(ConfigurationError, match=r"selection\.single_layer: layer 0"):
        make_draft(selection=single)
    draft = make_draft()
    with pytest.raises(EngineError, match="single_layer is 0 but the draft scores 1 to 2"):
        observe(draft, prompt(50), single)
    observe(draft, prompt(50), RULES[0])


def test_only_score_heads_count(model_folder: Path, make_draft: MakeDraft) -> None:
    ids, rule = prompt(80), make_rule(SelectionSettings(**RULES[2]))
    heads = ((1, 3), (2, 0), (2, 1))
    drafts = (
        make_draft({"score_heads": heads}),
        TorchDraft(model_folder, DraftSettings(dtype="float32", score_heads=heads)),
    )
    importances = []
    for draft in drafts:
        observer = AttentionObserver(rule, len(ids), None, heads)
        draft.observe(ids, observer)
        importances.append(observer.importance())
    torch.testing.assert_close(*importances, atol=1e-5, rtol=1e-4)


def test_failing_enqueue_is_an_engine_error(
    double: fake_tensorrt_llm.Double, make_draft: MakeDraft
) -> None:
    draft = make_draft()
    double.sessions[0].fails = True
    with pytest.raises(EngineError, match="did not run"):
        observe(draft, prompt(50), RULES[0])
    double.sessions[0].fails = False
    observe(draft, prompt(50), RULES[0])


def test_refused_shapes_are_an_engine_error(
    double: fake_tensorrt_llm.Double, make_draft: MakeDraft
) -> None:
    draft = make_draft()
    double.sessions[0].engine.limits["max_num_tokens"] = 10
    with pytest.raises(EngineError, match="optimisation profile"):
        observe(draft, prompt(50), RULES[0])


STEP_INPUTS = [
    "input_ids",
    "position_ids",
    "last_token_ids",
    "context_lengths",
    "sequence_length",
    "cache_indirection",
    "host_request_types",
    "host_past_key_value_lengths",
    "host_context_lengths",
    "host_max_attention_window_sizes",
    "host_sink_token_length",
]


def inputs(*extra: str, without: str | None = None) -> dict[str, Any]:
    names = [*STEP_INPUTS, "scoring_query_index", *extra]
    return {"inputs": {name: "int32" for name in names if name != without}}


def test_unknown_engine_input_stops_with_its_name(make_draft: MakeDraft) -> None:
    with pytest.raises(ConfigurationError, match="input host_new_thing"):
        make_draft(engine=inputs("host_new_thing"))


def test_paged_cache_stops_with_an_input_s_name(make_draft: MakeDraft) -> None:
    with pytest.raises(ConfigurationError, match="input kv_cache_block_offsets"):
        make_draft(engine=inputs("kv_cache_block_offsets"))


@pytest.mark.parametrize("missing", ["position_ids", "scoring_query_index"])
def test_missing_engine_input_stops_with_its_name(make_draft: MakeDraft, missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"lacks the input {missing}"):
        make_draft(engine=inputs(without=missing))


def test_engine_without_the_two_newest_inputs_runs(
    torch_draft: TorchDraft, make_draft: MakeDraft
) -> None:
    ids = prompt(60)
    importance = observe(make_draft(engine=inputs()), ids, RULES[0])
    torch.testing.assert_close(importance, observe(torch_draft, ids, RULES[0]))


def test_input_of_another_type_stops(make_draft: MakeDraft) -> None:
    engine = inputs()
    engine["inputs"]["position_ids"] = "int64"
    with pytest.raises(ConfigurationError, match=r"position_ids as torch\.int64"):
        make_draft(engine=engine)


def test_engine_without_scoring_queries_stops(make_draft: MakeDraft) -> None:
    with pytest.raises(ConfigurationError, match="scoring queries"):
        make_draft(engine={"score_layers": []})


def test_quantised_keys_stop(make_draft: MakeDraft) -> None:
    with pytest.raises(ConfigurationError, match="float8"):
        make_draft(engine={"cache_type": "FP8"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 2}, r"draft\.layers"),
        ({"attention_window": 64}, r"draft\.attention_window"),
        ({"weights": "int8"}, r"draft\.weights"),
        ({"score_layers": (0, 2)}, r"draft\.score_layers: layer 0"),
        ({"score_heads": ((2, 0), (0, 1))}, r"draft\.score_heads: layer 0"),
    ],
)
def test_settings_that_the_build_fixed_stop(
    make_draft: MakeDraft, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_draft(settings)


def test_fewer_score_layers_than_exported_are_counted(
    model_folder: Path, make_draft: MakeDraft
) -> None:
    ids = prompt(80)
    rule = make_rule(SelectionSettings(**RULES[2]))
    drafts = (
        make_draft({"score_layers": (2, 2)}),
        TorchDraft(model_folder, DraftSettings(dtype="float32", score_layers=(2, 2))),
    )
    importances = []
    for draft in drafts:
        observer = AttentionObserver(rule, len(ids), (2, 2))
        draft.observe(ids, observer)
        importances.append(observer.importance())
    torch.testing.assert_close(*importances, atol=1e-5, rtol=1e-4)


def test_closed_draft_fails_the_request(make_draft: MakeDraft) -> None:
    draft = make_draft()
    draft.close()
    with pytest.raises(EngineError, match="closed"):
        observe(draft, prompt(50), RULES[0])


def test_engine_that_does_not_load(
    double: fake_tensorrt_llm.Double, make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load_plugin", lambda: None)
    with pytest.raises(ConfigurationError, match="no creator of plugin"):
        make_draft()


def test_cache_grows_and_is_kept(make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_draft, "_CACHE_STEP", 64)
    draft = make_draft()
    capacities = []
    for length in (10, 60, 61, 200, 20, 396):
        observe(draft, prompt(length), RULES[0])
        capacities.append(draft._cache[0].shape[3])
    assert capacities == [64, 64, 128, 256, 256, MAX_PROMPT + 20]
