# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from specprefill.errors import ConfigurationError, InvalidRequestError
from specprefill.settings import (
    SamplingSettings,
    SelectionSettings,
    Settings,
    dump_settings,
    load_settings,
)


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_precedence_is_defaults_file_environment_overrides(tmp_path):
    path = write(tmp_path, "selection: {keep_rate: 0.4, chunk_size: 16, protect_last: 7}\n")
    environment = {
        "SPECPREFILL__SELECTION__KEEP_RATE": "0.5",
        "SPECPREFILL__SELECTION__CHUNK_SIZE": "8",
    }
    settings = load_settings(path, {"selection": {"keep_rate": 0.6}}, environment)
    selection = settings.selection
    assert (selection.keep_rate, selection.chunk_size, selection.protect_last) == (0.6, 8, 7)
    assert selection.pool_kernel == SelectionSettings().pool_kernel
    request = selection.for_request({"keep_rate": 0.7})
    assert (request.keep_rate, request.chunk_size) == (0.7, 8)


def test_the_file_may_come_from_the_environment(tmp_path):
    path = write(tmp_path, "selection: {keep_rate: 0.4}\n")
    assert load_settings(environment={"SPECPREFILL_CONFIG": str(path)}).selection.keep_rate == 0.4
    assert load_settings(environment={}) == Settings()


def test_settings_survive_a_round_trip(tmp_path):
    settings = load_settings(
        overrides={
            "draft": {"layers": 9, "score_layers": [2, 5], "score_heads": [[2, 1], [5, 0]]},
            "sampling": {"seed": 2**64 - 1},
            "selection": {"keep_rate_by_length": {4096: 0.3}, "role_keep_rates": {"tool": 0.1}},
        },
        environment={},
    )
    dump_settings(settings, tmp_path / "out.yaml")
    assert load_settings(tmp_path / "out.yaml", environment={}) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selektion: {}", "selektion: unknown key"),
        ("draft: {layer: 3}", "draft.layer: unknown key"),
        ("selection: {keep_rate: 0}", "selection.keep_rate: got 0; input should be greater than 0"),
        ("selection: {keep_rate: .nan}", "selection.keep_rate"),
        ("selection: {pool_kernel: 4}", "selection.pool_kernel: got 4; an even width"),
        ("selection: {scorer: best}", "selection.scorer: got 'best'"),
        ("draft: {layers: 4, score_layers: [2, 4]}", "ends at 4 but only 4 are loaded"),
        ("draft: {score_layers: [3, 2]}", "0 <= first <= last"),
        ("draft: {score_heads: []}", "draft.score_heads: got []"),
        ("draft: {score_heads: [[2, -1]]}", "draft.score_heads.0.1: got -1"),
        ("draft: {layers: 4, score_heads: [[4, 0]]}", "names layer 4 but only 4 are loaded"),
        (
            "draft: {score_layers: [2, 3], score_heads: [[1, 0], [4, 0]]}",
            "score_heads names no layer that score_layers counts",
        ),
        ("selection: {keep_rate_by_length: {4096: 2}}", "keep_rate_by_length.4096: got 2"),
        ("selection: {role_keep_rates: {robot: 0.2}}", "role_keep_rates.robot"),
        ("selection: {min_keep_rate: 0.4, max_keep_rate: 0.3}", "less than min_keep_rate"),
        ("selection: {scorer: none, budget: mass}", "selection.budget: got 'mass'; mass and"),
        ("server: {http_port: 70000}", "server.http_port: got 70000"),
        ("- 1", "must hold a mapping"),
        ("a: [", "is no YAML"),
    ],
)
def test_bad_files_name_the_key(tmp_path, text, message):
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(tmp_path, text), environment={})
    assert message in str(caught.value)
    assert "config.yaml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: No such file"):
        load_settings(tmp_path / "nowhere.yaml", environment={})


def test_unknown_environment_keys_are_errors():
    with pytest.raises(ConfigurationError, match=r"draft\.layer: unknown key"):
        load_settings(environment={"SPECPREFILL__DRAFT__LAYER": "3"})


@pytest.mark.parametrize(
    ("values", "field", "allowed"),
    [
        ({"keep_rate": 0.0}, "keep_rate", "finite number greater than 0 up to 1"),
        ({"keep_rate": 1.5}, "keep_rate", "finite number greater than 0 up to 1"),
        ({"keep_rate": float("nan")}, "keep_rate", "finite number greater than 0 up to 1"),
        ({"keep_rate": float("inf")}, "keep_rate", "finite number"),
        ({"scorer": "best"}, "scorer", "lookahead, zscore, window, single_layer, none"),
        ({"budget": "all"}, "budget", "rate, tokens, mass, threshold"),
        ({"keep_rate_by_length": "{"}, "keep_rate_by_length", "no valid JSON"),
        ({"keep_rate_by_length": '{"9": 2}'}, "keep_rate_by_length", "up to 1"),
        ({"keep_rate_by_length": '{"x": 0.2}'}, "keep_rate_by_length", "JSON object"),
        ({"role_keep_rates": "[" * 10**5}, "role_keep_rates", "no valid JSON"),
        ({"role_keep_rates": '{"me": 0.2}'}, "role_keep_rates", "keys system, user, assistant"),
        ({"min_keep_rate": 0.9}, "max_keep_rate", "not be less than min_keep_rate"),
        ({"scorer": "none", "budget": "threshold"}, "budget", "need scores"),
        ({"coverage": 1.5}, "coverage", "from 0 up to 1"),
        ({"keep_threshold": 1.0}, "keep_threshold", "from 0"),
        ({"chunk_size": 0}, "chunk_size", "integer from 1 up to 1024"),
        ({"pool_kernel": 2}, "pool_kernel", "an even width"),
        ({"protect_last": -1}, "protect_last", "integer from 0"),
        ({"keep": 1}, "keep", "keep_rate"),
    ],
)
def test_bad_request_values_name_field_value_and_range(values, field, allowed):
    with pytest.raises(InvalidRequestError) as caught:
        SelectionSettings().for_request(values)
    assert caught.value.field == field
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"max_tokens": 0}, "integer from 1"),
        ({"max_tokens": -1}, "integer from 1"),
        ({"temperature": -0.1}, "finite number from 0"),
        ({"top_p": 1.1}, "from 0 up to 1"),
        ({"repetition_penalty": 0.0}, "greater than 0"),
        ({"presence_penalty": 3.0}, "from -2"),
        ({"seed": -1}, "integer from 0"),
    ],
)
def test_bad_sampling_values(values, allowed):
    with pytest.raises(InvalidRequestError, match=next(iter(values))) as caught:
        SamplingSettings().for_request(values)
    assert allowed in str(caught.value)


# The files of the paper's reference implementation, by the form of their keys.
FULL = """
keep_strategy: percentage
keep_kwargs:
  chunk: true
  chunk_size: 32
  percentage: 0.3
pool_kernel_size: 13
look_ahead_cnt: 8
"""
P1 = """
keep_strategy: percentage
keep_kwargs:
  percentage: 0.5
pool_kernel_size: null
look_ahead_cnt: 1
ignore_eos: true
"""


def test_reference_configurations_load_as_they_are(tmp_path):
    full = load_settings(write(tmp_path, FULL), environment={}).selection
    assert full.model_dump() == {
        **SelectionSettings().model_dump(),
        "scorer": "lookahead",
        "keep_rate": 0.3,
        "chunk_size": 32,
        "pool_kernel": 13,
        "look_ahead": 8,
        "protect_first": 0,
        "protect_last": 0,
        "protect_last_user_tokens": 0,
        "min_prompt_tokens": 0,
    }
    p1 = load_settings(write(tmp_path, P1), environment={}).selection
    assert (p1.look_ahead, p1.pool_kernel, p1.chunk_size, p1.keep_rate) == (1, 1, 1, 0.5)
    assert p1.ignore_eos
    assert p1.scorer == "lookahead"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep_strategy: top_p", "keep_strategy: 'top_p'"),
        ("keep_kwargs: {percent: 0.3}", "keep_kwargs.percent: unknown"),
        ("look_ahead_cnt: 8\nmodel: x", "model: unknown key of a reference"),
        ("pool_kernel_size: 12", "even width"),
    ],
)
def test_bad_reference_configurations(tmp_path, text, message):
    with pytest.raises(ConfigurationError, match=message):
        load_settings(write(tmp_path, text), environment={})


def test_the_shipped_configurations_load():
    from specprefill.cli import default_config

    for path in default_config().parent.glob("*.yaml"):
        assert isinstance(load_settings(path, environment={}), Settings), path


def test_structured_settings_travel_as_json_text():
    request = SelectionSettings().for_request(
        {"keep_rate_by_length": '{"4096": 0.3, "0": 0.5}', "role_keep_rates": '{"tool": 0.1}'}
    )
    assert request.keep_rate_by_length == {4096: 0.3, 0: 0.5}
    assert request.role_keep_rates == {"tool": 0.1}
    assert request.for_request({"role_keep_rates": "null"}).role_keep_rates is None
    assert SelectionSettings.model_validate_json(request.model_dump_json()) == request


def test_structured_settings_come_from_files_and_the_environment(tmp_path):
    path = write(tmp_path, "selection: {keep_rate_by_length: {4096: 0.3}}\n")
    environment = {"SPECPREFILL__SELECTION__ROLE_KEEP_RATES": '{"tool": 0.1}'}
    selection = load_settings(path, environment=environment).selection
    assert selection.keep_rate_by_length == {4096: 0.3}
    assert selection.role_keep_rates == {"tool": 0.1}


def test_numpy_values_are_understood():
    assert SelectionSettings().for_request({"chunk_size": int(np.int32(4))}).chunk_size == 4
