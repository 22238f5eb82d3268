# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from specprefill.errors import SpecPrefillError
from specprefill.perf_input import parse_settings, perf_input, read_prompts
from typer.testing import CliRunner

LINES = '"Hello"\n\n{"prompt": "Bye", "keep_rate": 0.5, "name": "second"}\n'


def write(tmp_path, text, name="prompts.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_take_the_type_of_their_input():
    given = ["keep_rate=0.2", "top_k=3", "return_log_probs=True", "scorer=lookahead", "seed=7"]
    assert parse_settings([*given, "stop_words=a=b"]) == {
        "keep_rate": 0.2,
        "top_k": 3,
        "return_log_probs": True,
        "scorer": "lookahead",
        "seed": 7,
        "stop_words": "a=b",
    }


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("keep_rate", "--set: got 'keep_rate'; allowed: name=value"),
        ("keeprate=1", "--set: 'keeprate' is no public input; allowed: .*keep_rate"),
        ("keep_rate=half", "keep_rate: got 'half'; allowed: a number"),
        ("top_k=1.5", "top_k: got '1.5'; allowed: an integer"),
        ("stream=yes", "stream: got 'yes'; allowed: true or false"),
    ],
)
def test_bad_settings(assignment, sentence):
    with pytest.raises(SpecPrefillError, match=sentence):
        parse_settings([assignment])


def test_a_text_file_is_one_prompt(tmp_path):
    text = "First line.\n\nSecond line: grüße.\n"
    assert read_prompts(write(tmp_path, text, "a.txt")) == [{"prompt": text}]


def test_one_request_per_line(tmp_path):
    records = read_prompts(write(tmp_path, LINES))
    assert perf_input(records, 8, {"keep_rate": 0.2}) == {
        "data": [
            {"max_tokens": [8], "keep_rate": [0.2], "stream": [True], "text_input": ["Hello"]},
            {"max_tokens": [8], "keep_rate": [0.5], "stream": [True], "text_input": ["Bye"]},
        ]
    }


def test_messages_travel_as_json(tmp_path):
    messages = [{"role": "user", "content": "Grüße"}]
    records = read_prompts(write(tmp_path, json.dumps({"messages": messages})))
    (entry,) = perf_input(records, 1, {})["data"]
    assert json.loads(entry["messages"][0]) == messages
    assert "text_input" not in entry


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"a"\n{"prompt"', r"prompts.jsonl:2: no JSON"),
        ("3", r"prompts.jsonl:1: got 3; allowed: a JSON string or object"),
        ("{}", r"prompts.jsonl:1: no prompt given; allowed: exactly one of prompt, "),
        ('{"prompt": "a", "messages": []}', "prompt and messages given"),
        ('{"prompt": 5}', "prompt: got 5; allowed: a str"),
        ('""', r"prompt: got ''"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_bad_prompt_files(tmp_path, text, sentence):
    with pytest.raises(SpecPrefillError, match=sentence):
        read_prompts(write(tmp_path, text))


def test_an_unknown_field_is_named():
    with pytest.raises(SpecPrefillError, match="keeprate: no public input; allowed"):
        perf_input([{"prompt": "a", "keeprate": 1}], 1, {})


def test_the_command_writes_the_file(tmp_path):
    from specprefill.cli import app

    output = tmp_path / "in.json"
    command = ["perf-input", str(write(tmp_path, LINES)), "--output", str(output)]
    told = CliRunner().invoke(app, [*command, "--max-tokens", "4", "--set", "keep_rate=0.2"])
    assert told.exit_code == 0, told.output
    assert "2 requests" in told.output
    entries = json.loads(output.read_text())["data"]
    assert [entry["text_input"] for entry in entries] == [["Hello"], ["Bye"]]
    assert [entry["keep_rate"] for entry in entries] == [[0.2], [0.5]]
    assert entries[0]["max_tokens"] == [4]
