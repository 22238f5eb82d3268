# SPDX-License-Identifier: Apache-2.0
from typing import get_args

import pytest
from specprefill.errors import ConfigurationError, InvalidRequestError
from specprefill.quality.variant import KEEP_RATES, SETS, read_variants
from specprefill.settings import SelectionSettings, Settings

BASE = Settings()


@pytest.mark.parametrize("name", SETS)
def test_the_sets_are_valid_and_differ(name):
    variants = read_variants([name], BASE)
    ways = {(variant.settings(BASE).model_dump_json(), variant.oracle) for variant in variants}
    assert len(ways) == len(variants)


def test_every_scorer_is_compared():
    used = {v.settings(BASE).selection.scorer for v in read_variants(["scorers"], BASE)}
    assert used == set(get_args(SelectionSettings.model_fields["scorer"].annotation))


def test_the_papers_rule_reads_the_whole_draft():
    base = Settings.model_validate(
        {"draft": {"layers": 20, "score_layers": [12, 19], "attention_window": 512}}
    )
    paper = next(v for v in read_variants(["scorers"], base) if v.curve == "paper")
    settings = paper.settings(base)
    assert settings.draft.layers is None
    assert settings.draft.score_layers is None
    assert settings.draft.attention_window is None
    assert settings.selection.scorer == "lookahead"


def test_the_oracle_has_every_budget_and_asks_no_draft():
    oracles = [v for v in read_variants(["scorers"], BASE) if v.oracle]
    assert [v.settings(BASE).selection.keep_rate for v in oracles] == list(KEEP_RATES)
    assert {v.settings(BASE).selection.scorer for v in oracles} == {"none"}


def test_segments_are_compared_with_the_prompt_read_at_once():
    base = Settings.model_validate({"draft": {"attention_window": 512, "segment_tokens": 2048}})
    drafts = [v.settings(base).draft for v in read_variants(["segments"], base)]
    assert [d.segment_tokens for d in drafts] == [None, None, 512, 512, 1024, 1024]
    assert [d.attention_window for d in drafts] == [512, None, 512, 512, 512, 512]


def test_inline_and_file_variants(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("- label: early@0.1\n  selection: {keep_rate: 0.1}\n  draft: {layers: 8}\n")
    inline, filed = read_variants(["scorer=window,keep_rate=0.3,draft.layers=4", str(path)], BASE)
    assert inline.settings(BASE).selection.scorer == "window"
    assert inline.settings(BASE).draft.layers == 4
    assert filed.settings(BASE).draft.layers == 8
    assert filed.settings(BASE).selection.keep_rate == 0.1
    assert filed.curve == "early"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing", ConfigurationError, "allowed: scorers, choices, budgets, segments,"),
        ("keep_rate=2", InvalidRequestError, "keep_rate: got 2"),
        ("draft.layers=0", ConfigurationError, "variant draft.layers=0"),
        ("no_setting=1", InvalidRequestError, "unknown setting"),
        ("keep_rate=0.1,window", ConfigurationError, "'window' is no name=value"),
        ("/nowhere.yaml", ConfigurationError, "No such file"),
    ],
)
def test_bad_variants_are_told(name, error, message):
    with pytest.raises(error, match=message):
        read_variants([name], BASE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label: x", "must hold a list"),
        ("- selection: {}", "entry 1 has no label"),
        ("- {label: x, target: {}}", "target: unknown key"),
        ("- label: x\n- label: x", "'x' is taken"),
        ("- label: dense", "'dense' is taken"),
        ("- [", "variants file"),
    ],
)
def test_bad_files_are_told(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_variants([str(path)], BASE)
