# SPDX-License-Identifier: Apache-2.0
"""What two selections keep differently, from records and from explanations."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from specprefill.cli import app
from specprefill.errors import RecordError
from specprefill.explain.difference import compare, read_side
from typer.testing import CliRunner

from tests.explain.conftest import WORDS


@pytest.fixture
def files(tmp_path, make_explanation):
    """Two selections of one prompt that differ in keep_rate and chunk_size, as explanations."""
    paths = []
    for name, options in (
        ("a", {"keep_rate": 0.2, "chunk_size": 16}),
        ("b", {"keep_rate": 0.4, "chunk_size": 7}),
    ):
        explanation = make_explanation(WORDS, **options)
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(explanation.to_json()))
    return paths


def as_record(path):
    target = path.with_name(f"record-{path.name}")
    record = json.loads(path.read_text())["record"]
    target.write_text(json.dumps({**record, "prompt_ids": None}))
    return target


def kept(path):
    spans = json.loads(path.read_text())["record"]["kept"]
    return {token for start, end in spans for token in range(start, end)}


def test_every_token_is_counted_where_it_belongs(files):
    a, b = map(kept, files)
    difference = compare(*map(read_side, files))
    assert difference.kept_a == len(a)
    assert difference.kept_b == len(b)
    assert difference.kept_by_both == len(a & b)
    assert difference.jaccard == pytest.approx(len(a & b) / len(a | b))
    assert {t for s in difference.only_a for t in range(s.start, s.end)} == a - b
    assert {t for s in difference.only_b for t in range(s.start, s.end)} == b - a
    assert difference.settings == {"keep_rate": (0.2, 0.4), "chunk_size": (16, 7)}
    assert not difference.same


def test_spans_have_their_exact_text(files, tokenizer):
    difference = compare(*map(read_side, files))
    ids = tokenizer(WORDS).input_ids
    assert difference.only_a
    for span in (*difference.only_a, *difference.only_b):
        assert span.text == tokenizer.decode(ids[span.start : span.end])


def test_records_can_be_compared_with_explanations(files):
    a, b = files
    mixed = compare(read_side(as_record(a)), read_side(b))
    assert mixed.only_a == compare(read_side(a), read_side(b)).only_a
    bare = compare(read_side(as_record(a)), read_side(as_record(b)))
    assert all(span.text is None for span in bare.only_a)
    assert bare.jaccard == mixed.jaccard


def test_different_prompts_are_refused(files, tmp_path, make_explanation):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(asdict(make_explanation(f"{WORDS}!").record)))
    with pytest.raises(RecordError, match="different prompts"):
        compare(read_side(files[0]), read_side(other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version: got 99"),
        ({"text": None}, "text: missing"),
        ({"token_characters": [1]}, "token_characters"),
        ({"record": None}, "a.json"),
        ({"format": "something"}, "a.json"),
    ],
)
def test_a_broken_file_is_named(files, change, message):
    values = json.loads(files[0].read_text())
    files[0].write_text(json.dumps({**values, **change}))
    with pytest.raises(RecordError, match=message):
        read_side(files[0])


def run(*arguments):
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


def test_exit_codes_are_those_of_diff(files, tmp_path):
    assert run(files[0], files[0]).exit_code == 0
    assert run(*files).exit_code == 1
    assert run(files[0], tmp_path / "missing").exit_code == 2


def test_the_table_and_the_json_say_the_same(files):
    table = run(*files).output
    told = json.loads(run(*files, "--json").output)
    assert told["same"] is False
    assert f"{told['jaccard']:.3f}" in table
    assert f"{told['kept_a']:,}" in table
    assert "Only in A" in table
    assert told["only_a"][0]["text"].split()[0] in table
    assert json.loads(run(files[0], files[0], "--json").output)["same"] is True


def test_prompt_text_is_no_markup_in_the_table(tmp_path, make_explanation):
    text = " ".join(f"[red]item {i}[/red]" for i in range(80))
    paths = []
    for rate in (0.2, 0.5):
        explanation = make_explanation(text, keep_rate=rate, chunk_size=8, protect_last=1)
        paths.append(tmp_path / f"{rate}.json")
        paths[-1].write_text(json.dumps(explanation.to_json()))
    assert "[red]item" in run(*paths).output


def test_a_selection_is_the_same_as_itself_whatever_led_to_it(files):
    side = read_side(files[0])
    renamed = replace(side, record=replace(side.record, settings={"keep_rate": 0.9}))
    difference = compare(side, renamed)
    assert difference.same
    assert difference.jaccard == 1
    assert difference.settings["keep_rate"] == (0.2, 0.9)
