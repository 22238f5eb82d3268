# SPDX-License-Identifier: Apache-2.0
"""Explanations of a real draft: text, roles, scores, layers, answers; records and replay."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from specprefill.errors import InvalidRequestError, RecordError
from specprefill.explain.explainer import Explainer
from specprefill.explain.explanation import BAND_NAMES
from specprefill.pipeline import Pipeline
from specprefill.records import RecordWriter, make_record, parse_record, read_record
from specprefill.settings import RecordSettings, load_settings

from tests.explain.conftest import CHAT, WORDS


def test_the_text_is_the_whole_prompt_with_its_roles(explained_chat):
    text = explained_chat.text
    assert text.exact
    assert WORDS in text.text
    told = dict.fromkeys(BAND_NAMES, "")
    for chunk, (start, end) in explained_chat.segments():
        assert explained_chat.chunks[chunk].start <= start < end <= explained_chat.chunks[chunk].end
        told[BAND_NAMES[explained_chat.bands[start]]] += text.part(start, end)
    assert told["tool"].strip() == WORDS
    assert told["user"].strip() == "Which number has word12?"
    assert "<|im_start|>" in told["template"]
    assert sum(map(len, told.values())) == len(text.text)


def test_it_shows_the_very_selection_that_the_pipeline_makes(tiny_settings, explained_chat):
    pipeline = Pipeline(tiny_settings)
    try:
        selection = pipeline.start(messages=CHAT).speculation.selection
    finally:
        pipeline.close()
    assert explained_chat.record.active
    assert np.flatnonzero(explained_chat.kept).tolist() == selection.kept.tolist()
    scores = [chunk.score for chunk in explained_chat.chunks]
    assert scores == pytest.approx(selection.chunk_scores.tolist(), rel=1e-5)
    best = min(explained_chat.chunks, key=lambda chunk: chunk.rank)
    assert best.score == max(scores)


def test_the_layers_together_are_what_counted(tiny_settings, explained_chat):
    """The rule takes the maximum over layers: none alone is above it, and some layer leads."""
    assert list(explained_chat.by_layer) == [0, 1, 2]
    own = explained_chat.layer_scores  # [layers, n]
    together = np.asarray(explained_chat.record.chunk_scores)
    assert (own <= together + 1e-4).all()
    open_chunks = [c for c in explained_chat.chunks if not c.protected_tokens]
    assert sum(layer.leads for layer in explained_chat.layers) == len(open_chunks)


def test_one_scored_layer_is_the_whole_importance(tiny_settings):
    settings = tiny_settings.model_copy(
        update={"draft": tiny_settings.draft.model_copy(update={"score_layers": (1, 1)})}
    )
    explanation = Explainer(settings).explain("w", WORDS)
    assert list(explanation.by_layer) == [1]
    expected = explanation.record.chunk_scores
    assert explanation.by_layer[1].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_layers_of_look_ahead_steps_and_of_segments(tiny_settings):
    draft = tiny_settings.draft.model_copy(update={"segment_tokens": 300, "score_layers": (2, 2)})
    settings = tiny_settings.model_copy(update={"draft": draft})
    overrides = {"scorer": "lookahead", "look_ahead": 3, "ignore_eos": True}
    explanation = Explainer(settings).explain("w", WORDS, selection=overrides)
    assert explanation.record.prompt_tokens > 600  # three segments
    assert explanation.by_layer[2].tolist() == pytest.approx(
        explanation.record.chunk_scores, rel=1e-4, abs=1e-7
    )


def test_a_dense_prompt_is_explained_without_scores(explainer):
    explanation = explainer.explain("short", "a few words")
    assert not explanation.record.active
    assert explanation.kept.all()
    assert explanation.chunks[0].score is None
    assert explanation.layers == []
    assert explanation.to_json()["text"] == "a few words"


def test_answers_from_all_tokens_and_from_the_kept_ones(tiny_settings, explainer, explained_chat):
    dense, sparse = explainer.answer(explained_chat, max_tokens=5).answers
    pipeline = Pipeline(tiny_settings)
    try:
        sampling = {"max_tokens": 5}
        wanted = pipeline.generate(messages=CHAT, sampling=sampling)
        everything = pipeline.generate(
            messages=CHAT, sampling=sampling, selection={"keep_rate": 1.0}
        )
    finally:
        pipeline.close()
    assert (dense.name, dense.text) == ("dense", everything.strip())
    assert (sparse.name, sparse.text) == ("sparse", wanted.strip())
    assert dense.kept_tokens == explained_chat.record.prompt_tokens
    assert sparse.kept_tokens == explained_chat.record.kept_tokens


def test_replay_gives_the_original_answer_whatever_the_settings_say_now(
    tmp_path, tiny_settings, explainer
):
    pipeline = Pipeline(tiny_settings)
    try:
        generation = pipeline.start(messages=CHAT, selection={"keep_rate": 0.15})
        original = "".join(piece.text for piece in generation.pieces)
        writer = RecordWriter(RecordSettings(folder=str(tmp_path), content="ids"), "tiny")
        used = tiny_settings.selection.for_request({"keep_rate": 0.15})
        path = writer.write(generation.prompt, generation.speculation, used, "r1")
        record = read_record(path)

        again = pipeline.start(messages=CHAT, record=record)
        kept = generation.speculation.selection.kept.tolist()
        assert again.speculation.selection.kept.tolist() == kept
        assert again.speculation.draft_ms == 0
        assert "".join(piece.text for piece in again.pieces) == original
        with pytest.raises(RecordError, match="record is of a prompt"):
            pipeline.start(text=WORDS, record=record)
    finally:
        pipeline.close()
    explanation = explainer.answer(explainer.explain_record("r1", record), dense=False)
    assert [(a.name, a.text) for a in explanation.answers] == [("sparse", original.strip())]
    assert explanation.kept.sum() == len(kept)


def test_a_record_without_ids_needs_its_prompt(explainer, explained_chat):
    record = replace(explained_chat.record, prompt_ids=None)
    with pytest.raises(InvalidRequestError, match="holds no prompt"):
        explainer.explain_record("r", record)
    with pytest.raises(RecordError, match="prompt_tokens"):
        explainer.explain_record("r", record, text=WORDS)
    shown = explainer.explain_record("r", record, messages=CHAT)
    assert shown.text.text == explained_chat.text.text
    assert (shown.bands == explained_chat.bands).all()
    assert [c.score for c in shown.chunks] == [c.score for c in explained_chat.chunks]


def test_a_record_of_another_vocabulary_is_refused(explainer):
    from specprefill.prompt import Prompt
    from specprefill.selection import keep_all
    from specprefill.settings import SelectionSettings
    from specprefill.speculator import Speculation

    ids = np.asarray([1, 2, 999_999], dtype=np.int32)
    record = make_record(
        Prompt(ids), Speculation(keep_all(3, "dense")), SelectionSettings(), "d", with_ids=True
    )
    with pytest.raises(InvalidRequestError, match="beyond the model's vocabulary"):
        explainer.explain_record("r", record)


def test_the_json_stands_on_its_own(explained_chat):
    told = json.loads(json.dumps(explained_chat.to_json(), allow_nan=False))
    assert sum(told["token_characters"]) == len(told["text"])
    assert len(told["token_characters"]) == told["record"]["prompt_tokens"]
    joined = "".join(told["text"][c["text_start"] : c["text_end"]] for c in told["chunks"])
    assert joined == told["text"]
    assert sum(c["kept_tokens"] for c in told["chunks"]) == sum(
        end - start for start, end in told["record"]["kept"]
    )
    assert {c["role"] for c in told["chunks"]} <= set(BAND_NAMES)
    assert parse_record(json.dumps(told["record"]).encode()) == explained_chat.record


def test_a_setting_out_of_range_is_named(explainer):
    with pytest.raises(InvalidRequestError, match="keep_rate"):
        explainer.explain("w", WORDS, selection={"keep_rate": 2.0})


def test_a_deployment_that_cannot_work_is_refused():
    settings = load_settings(overrides={"target": {"model": "/nowhere"}}, environment={})
    with pytest.raises(Exception, match="/nowhere"):
        Explainer(settings)
