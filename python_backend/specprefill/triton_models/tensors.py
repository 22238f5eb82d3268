# SPDX-License-Identifier: Apache-2.0
"""The one table of tensors; the config.pbtxt files are generated from it and tested against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from specprefill.settings import SamplingSettings, SelectionSettings

# More than one prompt per request is refused with a sentence of ours instead of Triton's.
MAX_BATCH_SIZE = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a model.

    Attributes:
        name: public name.
        dtype: Triton's name without TYPE_, for example FP32.
        dims: without the batch dimension.
        optional: whether a request may leave it out.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = True


def _from_settings(section: Any) -> tuple[Tensor, ...]:
    """Declare one optional tensor per field of a settings section."""
    dtypes = {bool: "BOOL", int: "INT32", float: "FP32"}
    tensors = []
    for name, field in section.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        dtype = next((dtypes[kind] for kind in (bool, int, float) if kind in kinds), "STRING")
        tensors.append(Tensor(name, "UINT64" if name == "seed" else dtype))
    return tuple(tensors)


PROMPT = (Tensor("text_input", "STRING"), Tensor("messages", "STRING"))
SELECTION = _from_settings(SelectionSettings)
SAMPLING = _from_settings(SamplingSettings)
# Names that clients of older TensorRT-LLM ensembles still send -> the field they mean.
ALIASES = {"random_seed": "seed", "min_length": "min_tokens"}
OUTPUT_OPTIONS = (
    Tensor("stop_words", "STRING", (-1,)),
    Tensor("bad_words", "STRING", (-1,)),
    Tensor("end_id", "INT32"),
    Tensor("pad_id", "INT32"),
    Tensor("stream", "BOOL"),
    Tensor("exclude_input_in_output", "BOOL"),
    Tensor("return_log_probs", "BOOL"),
    Tensor("return_num_input_tokens", "BOOL"),
    Tensor("return_num_output_tokens", "BOOL"),
    Tensor("random_seed", "UINT64"),
    Tensor("min_length", "INT32"),
)
# Inputs of TensorRT-LLM's ensemble that this server does not do -> the only value accepted.
REFUSED: dict[str, tuple[Tensor, float | None]] = {
    "beam_width": (Tensor("beam_width", "INT32"), 1),
    "num_return_sequences": (Tensor("num_return_sequences", "INT32"), 1),
    "length_penalty": (Tensor("length_penalty", "FP32"), None),  # without beams it does nothing
    "return_context_logits": (Tensor("return_context_logits", "BOOL"), 0),
    "return_generation_logits": (Tensor("return_generation_logits", "BOOL"), 0),
    "return_perf_metrics": (Tensor("return_perf_metrics", "BOOL"), 0),
}
STOP = Tensor("stop", "BOOL")

# An error in the middle of a stream never reaches a Python model that called the one that failed
# (measured with Triton 2.51), so the entry asks the target to send errors as a tensor.
ERRORS_AS_OUTPUT = Tensor("errors_as_output", "BOOL")
STEP_ERROR = Tensor("step_error", "STRING", (2,))  # Triton's code and the sentence

PROMPT_IDS = Tensor("prompt_ids", "INT32", (-1,), optional=False)
PROTECTED_SPANS = Tensor("protected_spans", "INT32", (-1, 2), optional=False)
KEPT_IDS = Tensor("kept_ids", "INT32", (-1,), optional=False)
POSITION_IDS = Tensor("position_ids", "INT32", (-1,), optional=False)
SPECULATION = (
    Tensor("prompt_tokens", "INT32", optional=False),
    Tensor("kept_tokens", "INT32", optional=False),
    Tensor("active", "BOOL", optional=False),
    Tensor("reason", "STRING", optional=False),
    Tensor("draft_ms", "FP32", optional=False),
)
ANSWER = (
    Tensor("text_output", "STRING", (-1,)),
    Tensor("finish_reason", "STRING"),
    Tensor("cum_log_probs", "FP32", (-1,)),
    Tensor("output_log_probs", "FP32", (-1, -1)),
    Tensor("num_input_tokens", "INT32"),
    Tensor("num_output_tokens", "INT32"),
    Tensor("target_prefill_ms", "FP32"),
    Tensor("queue_ms", "FP32"),
)


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Inputs and outputs of one model."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


_REFUSED_TENSORS = tuple(tensor for tensor, _ in REFUSED.values())
_ALIASES = tuple(tensor for tensor in OUTPUT_OPTIONS if tensor.name in ALIASES)

STEPS = {
    "preprocessing": ModelTensors(
        # All settings, so that a bad one is told before the draft has worked for seconds.
        (*PROMPT, *SAMPLING, *SELECTION, *_ALIASES, *_REFUSED_TENSORS, STOP),
        (PROMPT_IDS, PROTECTED_SPANS),
    ),
    "draft": ModelTensors(
        (PROMPT_IDS, PROTECTED_SPANS, *SELECTION, STOP), (KEPT_IDS, POSITION_IDS, *SPECULATION)
    ),
    "target": ModelTensors(
        (
            *(PROMPT_IDS, KEPT_IDS, POSITION_IDS, *SPECULATION),
            *(*SAMPLING, *OUTPUT_OPTIONS, STOP, ERRORS_AS_OUTPUT),
        ),
        (*ANSWER, *SPECULATION, STEP_ERROR),
    ),
}
ENTRY = ModelTensors(
    (*PROMPT, *SAMPLING, *OUTPUT_OPTIONS, *SELECTION, *_REFUSED_TENSORS, STOP),
    (*ANSWER, *SPECULATION),
)
MODELS = {**STEPS, "specprefill": ENTRY, "ensemble": ENTRY}
