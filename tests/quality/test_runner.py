# SPDX-License-Identifier: Apache-2.0
"""Runner against the pipeline, on the tiny model: same selections, same answers."""

import numpy as np
import pytest
from specprefill.errors import ConfigurationError, EngineError
from specprefill.pipeline import Pipeline
from specprefill.prompt import PromptEncoder
from specprefill.quality import runner as runner_module
from specprefill.quality.cache import Cache
from specprefill.quality.evidence import evidence_mask
from specprefill.quality.ruler import generate_samples
from specprefill.quality.runner import Runner, matched_share
from specprefill.quality.variant import Variant
from specprefill.settings import TensorRTSettings

VARIANTS = [
    Variant("zscore@0.2", {"keep_rate": 0.2}),
    Variant("zscore@0.5", {"keep_rate": 0.5, "chunk_size": 16}),
    Variant("window@0.2", {"scorer": "window"}),
    Variant("none@0.2", {"scorer": "none"}),
    Variant("lookahead@0.2", {"scorer": "lookahead", "look_ahead": 3}),
    Variant("early@0.2", {}, {"layers": 2}),
]


@pytest.fixture(scope="module")
def samples(tokenizer):
    return generate_samples(tokenizer, [700], 1, ["niah_single", "common_words"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def outcomes(tiny_settings, samples, folder):
    runner = Runner(tiny_settings, Cache(folder))
    return {
        (sample.name, outcome.variant): outcome
        for sample in samples
        for outcome in runner.run(sample, VARIANTS)
    }


def test_selections_and_answers_are_those_of_the_pipeline(tiny_settings, samples, outcomes):
    pipeline = Pipeline(tiny_settings)
    for sample in samples:
        for variant in [Variant("dense", {"keep_rate": 1.0}), *VARIANTS[:5]]:
            generation = pipeline.start(
                sample.text,
                sample.messages,
                selection=variant.selection,
                sampling={"max_tokens": sample.max_tokens},
            )
            outcome = outcomes[sample.name, variant.label]
            assert "".join(piece.text for piece in generation.pieces) == outcome.text
            assert len(generation.speculation.selection.kept) == outcome.kept_tokens
    pipeline.close()


def test_what_is_measured(samples, outcomes):
    for sample in samples:
        dense = outcomes[sample.name, "dense"]
        assert dense.kept_tokens == dense.prompt_tokens
        assert (dense.same_first_token, dense.matched, dense.first_divergence) == (True, 1.0, 0.0)
        for variant in VARIANTS:
            outcome = outcomes[sample.name, variant.label]
            assert outcome.kept_tokens < outcome.prompt_tokens
            assert outcome.prefill_ms > 0
            assert (outcome.draft_ms > 0) == (variant.label != "none@0.2")
            assert outcome.first_divergence > 0
            assert outcome.answer_divergence > 0
            assert 0 <= outcome.matched <= 1
            assert (outcome.evidence_kept is None) == (sample.task == "common_words")


def test_the_evidence_kept_is_that_of_the_selection(tiny_settings, samples, tmp_path, tokenizer):
    sample = samples[0]
    prompt = PromptEncoder(tokenizer, 8192).encode(None, sample.messages)
    first = int(np.flatnonzero(evidence_mask(sample, tokenizer, prompt.token_ids))[0])
    spare = {"scorer": "none", "keep_rate": 0.01, "chunk_size": 4}
    whole = {**spare, "protect_last": len(prompt.token_ids) - first}
    half = {**whole, "protect_last": whole["protect_last"] - 8}
    variants = [Variant("whole", whole), Variant("half", half)]
    shares = [o.evidence_kept for o in Runner(tiny_settings, Cache(tmp_path)).run(sample, variants)]
    assert shares[:2] == [1.0, 1.0]
    assert 0 < shares[2] < 1


def test_the_oracle_keeps_the_answer_within_the_budget(tiny_settings, samples, tmp_path):
    spare = {"scorer": "none", "keep_rate": 0.2, "chunk_size": 16}
    variants = [Variant("none", spare), Variant("oracle", spare, oracle=True)]
    _, none, oracle = Runner(tiny_settings, Cache(tmp_path)).run(samples[0], variants)
    assert none.evidence_kept is not None
    assert none.evidence_kept < 1
    assert oracle.evidence_kept == 1.0
    # The answer is paid for; what is left of a chunk may come on top.
    assert abs(oracle.kept_tokens - none.kept_tokens) <= 16


def test_a_second_run_loads_no_model(tiny_settings, samples, outcomes, folder, monkeypatch):
    def refuse(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(runner_module, "make_draft", refuse)
    monkeypatch.setattr(runner_module, "TargetProbe", refuse)
    runner = Runner(tiny_settings, Cache(folder))
    for sample in samples:
        for outcome in runner.run(sample, VARIANTS):
            assert outcome == outcomes[sample.name, outcome.variant]


def test_keep_rates_share_one_reading_of_the_prompt(tiny_settings, samples, tmp_path, monkeypatch):
    reads = []
    make = runner_module.make_draft

    def counting(settings):
        draft = make(settings)
        observe = draft.observe
        monkeypatch.setattr(draft, "observe", lambda *a: (reads.append(a), observe(*a))[1])
        return draft

    monkeypatch.setattr(runner_module, "make_draft", counting)
    rates = [Variant(f"z@{r}", {"keep_rate": r, "coverage": r}) for r in (0.1, 0.2, 0.3)]
    outcomes = list(Runner(tiny_settings, Cache(tmp_path)).run(samples[0], rates))
    assert len(reads) == 2  # the warm-up and the prompt
    assert len({outcome.kept_tokens for outcome in outcomes}) == 4
    assert len({outcome.draft_ms for outcome in outcomes[1:]}) == 1


def test_scoring_settings_are_never_mixed_up(tiny_settings, samples, tmp_path):
    variants = [Variant(str(k), {"pool_kernel": k}) for k in (1, 33)]
    runner = Runner(tiny_settings, Cache(tmp_path))
    together = [outcome.text for outcome in runner.run(samples[0], variants)][1:]
    apart = []
    for number, variant in enumerate(variants):
        fresh = Runner(tiny_settings, Cache(tmp_path / str(number)))
        apart += [outcome.text for outcome in fresh.run(samples[0], [variant])][1:]
    assert together == apart


def test_a_failing_draft_is_an_error_here(tiny_settings, samples, tmp_path):
    runner = Runner(tiny_settings, Cache(tmp_path))
    deep = Variant("deep", {"scorer": "single_layer", "single_layer": 77})
    with pytest.raises(EngineError, match=r"variant deep: .*single_layer is 77"):
        list(runner.run(samples[0], [deep]))


def test_an_engine_without_logits_is_refused(tiny_settings, tmp_path):
    settings = tiny_settings.model_copy(
        update={"engine": "tensorrt_llm", "tensorrt_llm": TensorRTSettings(engine_dir="x")}
    )
    with pytest.raises(ConfigurationError, match="use --base-url"):
        Runner(settings, Cache(tmp_path))


@pytest.mark.parametrize(
    ("expected", "tokens", "share"),
    [([1, 2, 3, 4], [1, 2, 9, 4], 0.5), ([1], [], 0.0), ([], [], 1.0), ([], [1], 0.0)],
)
def test_matched_share(expected, tokens, share):
    assert matched_share(expected, tokens) == share


def test_a_damaged_cache_entry_is_as_good_as_none(tmp_path):
    cache = Cache(tmp_path)
    key = Cache.key(a=1, b=np.arange(3))
    cache.put(key, {"x": np.arange(4)})
    assert cache.get(key)["x"].tolist() == [0, 1, 2, 3]
    (path,) = tmp_path.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:40])
    assert cache.get(key) is None


def test_cache_keys_tell_dtype_shape_and_value_apart():
    arrays = [np.arange(4), np.arange(4, dtype=np.int8), np.arange(4).reshape(2, 2)]
    keys = {Cache.key(a=value) for value in (*arrays, [0, 1, 2, 3], "0123")}
    assert len(keys) == 5
