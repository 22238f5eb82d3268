# SPDX-License-Identifier: Apache-2.0
"""Selection records: what is in them, what is not, how they are written, and replay."""

from __future__ import annotations

import json
import logging
import os
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specprefill.errors import RecordError
from specprefill.prompt import Prompt
from specprefill.records import (
    RecordWriter,
    make_record,
    parse_record,
    prompt_digest,
    read_record,
    replay,
)
from specprefill.selection import keep_all, protected_mask, select
from specprefill.settings import RecordSettings, SelectionSettings
from specprefill.speculator import Speculation

SELECTION = SelectionSettings(
    min_prompt_tokens=0, chunk_size=10, protect_first=4, protect_last=7, keep_rate=0.3
)


def scored(length=205, seed=0, selection=SELECTION, spans=((50, 53),)):
    """A prompt and its speculation, without a draft."""
    rng = np.random.default_rng(seed)
    prompt = Prompt(rng.integers(0, 50_000, length).astype(np.int32), spans)
    protected = protected_mask(length, selection.protect_first, selection.protect_last, spans)
    importance = rng.random(length).astype(np.float32)
    chosen = select(importance, selection, protected)
    return prompt, Speculation(chosen, 12.3456, importance=importance)


def writer(folder, **options):
    return RecordWriter(RecordSettings(folder=str(folder), **options), "some-draft")


def test_a_record_says_what_was_kept_and_why_but_not_what_the_prompt_says(tmp_path):
    prompt, speculation = scored()
    path = writer(tmp_path).write(prompt, speculation, SELECTION, "request-7")
    record = read_record(path)
    assert record.id == "request-7"
    assert record.draft_model == "some-draft"
    assert record.prompt_tokens == 205
    assert record.settings["keep_rate"] == 0.3
    assert record.settings["chunk_size"] == 10
    assert record.protected == [(0, 4), (50, 53), (198, 205)]
    assert record.kept_tokens == len(speculation.selection.kept)
    assert record.chunk_starts == list(range(0, 205, 10))
    assert record.chunk_scores == pytest.approx(speculation.selection.chunk_scores, rel=1e-5)
    assert record.draft_ms == 12.346
    assert record.active
    assert record.reason.startswith("pruned: kept")
    assert record.prompt_ids is None
    assert record.prompt_sha256 == prompt_digest(prompt.token_ids)


def test_token_ids_are_written_only_when_asked_for(tmp_path):
    prompt, speculation = scored()
    record = read_record(writer(tmp_path, content="ids").write(prompt, speculation, SELECTION))
    assert record.prompt_ids == prompt.token_ids.tolist()


def test_only_the_owner_can_read_records(tmp_path):
    folder = tmp_path / "deep" / "records"
    path = writer(folder).write(*scored(), SELECTION)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == [path.name]  # nothing half-written beside it


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RecordWriter(RecordSettings(), "d").write(*scored(), SELECTION) is None
    prompt = Prompt(np.arange(9, dtype=np.int32))
    dense = Speculation(keep_all(9, "dense: 9 prompt tokens"))
    assert writer(tmp_path / "r").write(prompt, dense, SELECTION) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", ".hidden", "a\0b\n", "x" * 4000])
def test_a_request_id_never_chooses_the_folder(tmp_path, name):
    folder = tmp_path / "records"
    path = writer(folder).write(*scored(), SELECTION, name)
    assert path.parent == folder
    assert path.name.startswith("selection-")
    assert os.listdir(tmp_path) == ["records"]
    assert read_record(path).id == name


def test_the_oldest_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "notes.json").write_text("{}")
    write = writer(tmp_path, max_files=3)
    paths = [write.write(*scored(seed=i), SELECTION, f"z{9 - i}") for i in range(6)]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["notes.json", *(p.name for p in paths[3:])]
    )


def test_a_folder_that_cannot_be_written_is_logged_and_costs_no_answer(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert writer(tmp_path / "file" / "below").write(*scored(), SELECTION) is None
    assert "could not be written" in caplog.text


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 400),
    seed=st.integers(0, 1000),
    chunk=st.integers(1, 40),
    rate=st.floats(0.01, 1),
)
def test_replay_gives_exactly_the_saved_selection(length, seed, chunk, rate):
    selection = SELECTION.model_copy(update={"chunk_size": chunk, "keep_rate": rate})
    prompt, speculation = scored(length, seed, selection)
    record = make_record(prompt, speculation, selection, "d")
    text = json.dumps({name: getattr(record, name) for name in record.__dataclass_fields__})
    again = replay(parse_record(text.encode()), prompt.token_ids)
    original = speculation.selection
    assert again.kept.dtype == np.int32
    assert again.kept.tolist() == original.kept.tolist()
    assert again.chunk_starts.tolist() == original.chunk_starts.tolist()
    assert (again.prompt_length, again.active, again.reason) == (
        original.prompt_length,
        original.active,
        original.reason,
    )


def test_replay_refuses_another_prompt():
    prompt, speculation = scored()
    record = make_record(prompt, speculation, SELECTION, "d")
    with pytest.raises(RecordError, match="of 205 tokens, but this one has 204"):
        replay(record, prompt.token_ids[:-1])
    other = prompt.token_ids.copy()
    other[17] += 1
    with pytest.raises(RecordError, match="another prompt of the same length"):
        replay(record, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"prompt_sha256": "abc"}, "prompt_sha256"),
        ({"kept": [[3, 1], [200, 205]]}, "kept: span"),
        ({"kept": [[0, 10], [5, 205]]}, "kept: span"),
        ({"kept": [[0, 300]]}, "kept: span"),
        ({"kept": [[0, 204]]}, "kept: lacks the last token"),
        ({"kept": []}, "kept: lacks the last token"),
        ({"kept": [["a", 205]]}, "kept.0.0"),
        ({"active": False}, "active: False with"),
        ({"protected": [[200, 206]]}, "protected: span"),
        ({"chunk_starts": [0, 10, 10]}, "chunk_starts"),
        ({"chunk_starts": [1, 10]}, "chunk_starts"),
        ({"chunk_scores": [1.0]}, "chunk_scores"),
        ({"chunk_scores": [float("nan")] * 21}, "chunk_scores"),
        ({"prompt_ids": [1, 2]}, "prompt_ids"),
        ({"draft_ms": "soon"}, "draft_ms"),
    ],
)
def test_a_broken_record_is_named(tmp_path, change, message):
    path = writer(tmp_path).write(*scored(), SELECTION)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RecordError, match=message):
        read_record(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, "{}", "\x80"])
def test_a_file_that_is_no_record_is_named(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=r"record .*r\.json"):
        read_record(path)
    with pytest.raises(RecordError, match="No such file"):
        read_record(tmp_path / "missing.json")
