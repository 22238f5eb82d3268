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


PROMPT = (
    Tensor("text_input", "STRING"),
    Tensor("messages", "STRING"),
    Tensor("keep_spans", "STRING"),
)
TIMEOUT = Tensor("timeout_ms", "INT32")
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
    Tensor("return_kept_spans", "BOOL"),
    Tensor("random_seed", "UINT64"),
    Tensor("min_length", "INT32"),
)
# Without beams it does nothing.
LENGTH_PENALTY = Tensor("length_penalty", "FP32")
# Inputs of TensorRT-LLM's ensemble that this server does not do -> the only value accepted, None
# for those that may not be sent at all.
REFUSED: dict[Tensor, int | None] = {
    Tensor("beam_width", "INT32"): 1,
    Tensor("num_return_sequences", "INT32"): 1,
    Tensor("return_context_logits", "BOOL"): 0,
    Tensor("return_generation_logits", "BOOL"): 0,
    Tensor("return_perf_metrics", "BOOL"): 0,
    Tensor("decoder_text_input", "STRING"): None,
    Tensor("prompt_embedding_table", "FP16", (-1, -1)): None,
    Tensor("prompt_table_extra_id", "UINT64"): None,
    Tensor("prompt_vocab_size", "INT32"): None,
    Tensor("embedding_bias_words", "STRING", (-1,)): None,
    Tensor("embedding_bias_weights", "FP32", (-1,)): None,
    Tensor("lora_task_id", "UINT64"): None,
    Tensor("lora_weights", "FP16", (-1, -1)): None,
    Tensor("lora_config", "INT32", (-1, 3)): None,
    Tensor("guided_decoding_guide_type", "STRING"): None,
    Tensor("guided_decoding_guide", "STRING"): None,
}
STOP = Tensor("stop", "BOOL")

# An error in the middle of a stream never reaches a Python model that called the one that failed
# (measured with Triton 2.51), so the entry asks the target to send errors as a tensor.
ERRORS_AS_OUTPUT = Tensor("errors_as_output", "BOOL")
STEP_ERROR = Tensor("step_error", "STRING", (2,))  # Triton's code and the sentence

PROMPT_IDS = Tensor("prompt_ids", "INT32", (-1,), optional=False)
# What preprocessing knows of the prompt beside its ids.
PROTECTED_SPANS = Tensor("protected_spans", "INT32", (-1, 2))
ROLE_SPANS = Tensor("role_spans", "INT32", (-1, 3))
BORDERS = Tensor("borders", "UINT8", (-1,))
DENSE_REASON = Tensor("dense_reason", "STRING")
DRAFT_IDS = Tensor("draft_ids", "INT32", (-1,))
DRAFT_RANGES = Tensor("draft_ranges", "INT32", (-1, 2))
PROMPT_DETAILS = (PROTECTED_SPANS, ROLE_SPANS, BORDERS, DENSE_REASON, DRAFT_IDS, DRAFT_RANGES)
# Arrival of the request and its deadline, 0 for none, in nanoseconds of the machine's monotonic
# clock, which all processes share.
TIMING = Tensor("timing", "INT64", (2,))
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
    Tensor("output_tokens", "STRING", (-1,)),
    Tensor("num_input_tokens", "INT32"),
    Tensor("num_output_tokens", "INT32"),
    Tensor("target_prefill_ms", "FP32"),
    Tensor("queue_ms", "FP32"),
    Tensor("kept_spans", "INT32", (-1, 2)),
)


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Inputs and outputs of one model."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


_CHECKED = (LENGTH_PENALTY, *REFUSED)
_ALIASES = tuple(tensor for tensor in OUTPUT_OPTIONS if tensor.name in ALIASES)

STEPS = {
    "preprocessing": ModelTensors(
        # All settings, so that a bad one is told before the draft has worked for seconds.
        (*PROMPT, *SAMPLING, *SELECTION, *_ALIASES, *_CHECKED, TIMEOUT, STOP),
        (PROMPT_IDS, *PROMPT_DETAILS, TIMING),
    ),
    "draft": ModelTensors(
        (PROMPT_IDS, *PROMPT_DETAILS, TIMING, *SELECTION, STOP),
        (KEPT_IDS, POSITION_IDS, *SPECULATION),
    ),
    "target": ModelTensors(
        (
            *(PROMPT_IDS, KEPT_IDS, POSITION_IDS, *SPECULATION, TIMING),
            *(*SAMPLING, *OUTPUT_OPTIONS, STOP, ERRORS_AS_OUTPUT),
        ),
        (*ANSWER, *SPECULATION, STEP_ERROR),
    ),
}
ENTRY = ModelTensors(
    (*PROMPT, *SAMPLING, *OUTPUT_OPTIONS, *SELECTION, *_CHECKED, TIMEOUT, STOP),
    (*ANSWER, *SPECULATION),
)
MODELS = {**STEPS, "specprefill": ENTRY, "ensemble": ENTRY}
