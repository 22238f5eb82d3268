# SPDX-License-Identifier: Apache-2.0
import pytest
from specprefill.server import MODELS as SERVED
from specprefill.server import default_model_repository
from specprefill.settings import SamplingSettings, SelectionSettings
from specprefill.triton_models.config_pbtxt import render
from specprefill.triton_models.tensors import ENTRY, MODELS, STEPS


@pytest.mark.parametrize("model", list(MODELS))
def test_the_files_are_what_the_table_says(model):
    path = default_model_repository() / model / "config.pbtxt"
    assert path.read_text() == render(model), "run: make configs"


def test_every_model_is_served():
    assert set(SERVED) == set(MODELS)


def test_every_public_input_feeds_a_step():
    fed = {tensor for step in STEPS.values() for tensor in step.inputs}
    assert set(ENTRY.inputs) <= fed
    produced = {tensor for step in STEPS.values() for tensor in step.outputs}
    assert set(ENTRY.outputs) <= produced


def test_every_request_setting_has_a_tensor():
    names = {tensor.name for tensor in ENTRY.inputs}
    assert set(SelectionSettings.model_fields) | set(SamplingSettings.model_fields) <= names


# TensorRT-LLM's ensemble, as its clients know it.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("text_input", "STRING"),
        ("max_tokens", "INT32"),
        ("stop_words", "STRING"),
        ("bad_words", "STRING"),
        ("end_id", "INT32"),
        ("pad_id", "INT32"),
        ("top_k", "INT32"),
        ("top_p", "FP32"),
        ("temperature", "FP32"),
        ("length_penalty", "FP32"),
        ("repetition_penalty", "FP32"),
        ("min_tokens", "INT32"),
        ("presence_penalty", "FP32"),
        ("frequency_penalty", "FP32"),
        ("seed", "UINT64"),
        ("return_log_probs", "BOOL"),
        ("return_num_input_tokens", "BOOL"),
        ("beam_width", "INT32"),
        ("stream", "BOOL"),
        ("exclude_input_in_output", "BOOL"),
        ("random_seed", "UINT64"),
        ("min_length", "INT32"),
    ],
)
def test_inputs_that_clients_of_tensorrt_llm_send(name, dtype):
    assert {t.name: t.dtype for t in ENTRY.inputs}[name] == dtype
