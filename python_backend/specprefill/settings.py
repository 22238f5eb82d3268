# SPDX-License-Identifier: Apache-2.0
"""The one settings tree and the one resolver: defaults < file < environment < request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specprefill.errors import ConfigurationError, InvalidRequestError

CONFIG_VARIABLE = "SPECPREFILL_CONFIG"
ENVIRONMENT_PREFIX = "SPECPREFILL__"
EMBEDDED_MODEL = "smollm2"


class _Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _parse_json(value: Any) -> Any:
    """Read a structured setting that came as JSON: a request carries plain strings only."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"no valid JSON: {error}") from error


_FROM_JSON = BeforeValidator(_parse_json)
KeepRate = Annotated[float, Field(gt=0, le=1)]
NotNegative = Annotated[int, Field(ge=0)]
Role = Literal["system", "user", "assistant", "tool"]


class SelectionSettings(_Section):
    """Which prompt tokens are kept. Every one of these can be set per request."""

    scorer: Literal["lookahead", "zscore", "window", "single_layer", "none"] = Field(
        "zscore",
        description="Scoring rule: `lookahead` is the paper's; `zscore`, `window` and "
        "`single_layer` decode nothing; `none` runs no draft and keeps evenly spaced chunks.",
    )
    keep_rate: float = Field(
        0.2, gt=0, le=1, description="Share of the prompt's chunks to keep; 1 is dense prefill."
    )
    chunk_size: int = Field(
        32, ge=1, le=1024, description="Tokens per chunk; 1 selects single tokens."
    )
    pool_kernel: int = Field(
        13, ge=1, le=255, description="Width of the pooling over the prompt; odd."
    )
    look_ahead: int = Field(
        8, ge=1, le=64, description="Steps of the `lookahead` rule; the last prompt token is one."
    )
    ignore_eos: bool = Field(
        False, description="Let the look-ahead of the `lookahead` rule run past a stop token."
    )
    query_window: int = Field(
        16,
        ge=1,
        le=256,
        description="Last prompt tokens whose queries the `zscore` and `window` rules use.",
    )
    single_layer: int = Field(
        13, ge=0, description="Layer of the `single_layer` rule, whatever `draft.score_layers` is."
    )
    pooling: Literal["avg", "max"] = Field(
        "avg", description="How attention is pooled over `pool_kernel` prompt tokens."
    )
    protect_first: int = Field(4, ge=0, description="Tokens at the prompt's start always kept.")
    protect_last: int = Field(
        64, ge=0, description="Tokens at the prompt's end always kept; the last one always is."
    )
    protect_last_user_tokens: int = Field(
        256, ge=0, description="A last user message of at most this many tokens is kept whole."
    )
    verbatim_guard: bool = Field(
        False, description="Prefill densely when the prompt asks for a quote, copy or translation."
    )
    min_prompt_tokens: int = Field(
        512, ge=0, description="Prompts shorter than this are prefilled densely."
    )
    chunk_borders: Literal["fixed", "line", "sentence"] = Field(
        "fixed",
        description="Where chunks end: every `chunk_size` tokens, or at the nearest line or "
        "sentence within half a chunk of that.",
    )
    neighbours: int = Field(
        0, ge=0, le=64, description="Chunks kept on each side of a chosen one, within the budget."
    )
    coverage: float = Field(
        0.0, ge=0, le=1, description="Share of the budget for evenly spaced chunks; 1 is all of it."
    )
    budget: Literal["rate", "tokens", "mass", "threshold"] = Field(
        "rate",
        description="What limits the kept chunks: `keep_rate`, `keep_tokens`, `keep_mass` or "
        "`keep_threshold`.",
    )
    keep_rate_by_length: Annotated[dict[NotNegative, KeepRate] | None, _FROM_JSON] = Field(
        None,
        description="Keep rates for prompts from so many tokens on, in place of `keep_rate`; "
        'as `{"4096": 0.3, "16384": 0.15}`.',
    )
    role_keep_rates: Annotated[dict[Role, KeepRate] | None, _FROM_JSON] = Field(
        None,
        description="Keep rates within the messages of a role, in place of `keep_rate`; "
        'as `{"tool": 0.1, "user": 0.5}`.',
    )
    keep_tokens: int = Field(1024, ge=1, description="With budget `tokens`: most tokens to keep.")
    keep_mass: float = Field(
        0.9,
        gt=0,
        le=1,
        description="With budget `mass`: share of the importance above the median to keep.",
    )
    keep_threshold: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="With budget `threshold`: keep chunks that score more than this share of the "
        "best one, both above the median.",
    )
    min_keep_rate: float = Field(
        0.05, gt=0, le=1, description="Least `keep_rate` of the budgets `mass` and `threshold`."
    )
    max_keep_rate: float = Field(
        0.5, gt=0, le=1, description="Largest `keep_rate` of the budgets `mass` and `threshold`."
    )
    flat_guard: Literal["off", "raise", "dense"] = Field(
        "off",
        description="What to do when no chunk stands out: nothing, keep at least "
        "`flat_keep_rate`, or prefill densely.",
    )
    flat_threshold: float = Field(
        12.0,
        gt=0,
        description="No chunk stands out if the best between the prompt's edges is less than this "
        "many deviations above the median.",
    )
    flat_keep_rate: float = Field(
        0.5, gt=0, le=1, description="With flat_guard `raise`: least share of chunks to keep."
    )

    @field_validator("pool_kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("an even width gives one score more than there are tokens; use an odd")
        return kernel

    @field_validator("budget")
    @classmethod
    def _has_scores(cls, budget: str, info: ValidationInfo) -> str:
        if budget in ("mass", "threshold") and info.data.get("scorer") == "none":
            raise ValueError("mass and threshold need scores, and the scorer none gives none")
        return budget

    @field_validator("max_keep_rate")
    @classmethod
    def _not_below_the_least(cls, rate: float, info: ValidationInfo) -> float:
        least = info.data.get("min_keep_rate", rate)
        if rate < least:
            raise ValueError(f"it must not be less than min_keep_rate, which is {least}")
        return rate

    def for_request(self, overrides: Mapping[str, Any]) -> SelectionSettings:
        """Apply a request's own values.

        Args:
            overrides: field name -> value, only fields that the request set.

        Raises:
            InvalidRequestError: a value is out of range; names the field and the range.
        """
        if not overrides:
            return self
        return _validate_request(type(self), {**self.model_dump(), **overrides})


class SamplingSettings(_Section):
    """How the target chooses tokens. Every one of these can be set per request."""

    max_tokens: int = Field(256, ge=1, description="Most tokens to generate.")
    min_tokens: int = Field(0, ge=0, description="No stop token before this many tokens.")
    temperature: float = Field(
        1.0, ge=0, description="Divides the logits when sampling; 0 means greedy."
    )
    top_k: int = Field(
        0, ge=0, description="Sample from the k most likely tokens; 0 sets no limit, 1 is greedy."
    )
    top_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Sample from the smallest set with this probability; 0 sets no limit.",
    )
    seed: int | None = Field(
        None, ge=0, le=2**64 - 1, description="Seed of the sampling; unset draws a fresh one."
    )
    repetition_penalty: float = Field(
        1.0, gt=0, description="Divides the positive logits of tokens already seen; 1 is off."
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="Subtracted once from the logits of generated tokens."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="Subtracted per occurrence from logits of generated tokens."
    )

    @property
    def greedy(self) -> bool:
        """As in TensorRT-LLM: sampling happens only when top_k or top_p asks for it."""
        return self.temperature == 0 or self.top_k == 1 or (self.top_k == 0 and self.top_p == 0)

    def for_request(self, overrides: Mapping[str, Any]) -> SamplingSettings:
        """Apply a request's own values; raises InvalidRequestError as SelectionSettings does."""
        if not overrides:
            return self
        return _validate_request(type(self), {**self.model_dump(), **overrides})


Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class DraftSettings(_Section):
    """The small model that reads the whole prompt."""

    model: str = Field(
        EMBEDDED_MODEL,
        description="Hugging Face folder, `smollm2`, or a model for measuring (docs/planning.md).",
    )
    device: str = Field("cpu", description="Torch device, for example `cpu` or `cuda:0`.")
    dtype: Dtype = Field(
        "auto", description="`auto` is bfloat16 where the processor computes in it, else float32."
    )
    weights: Literal["as_dtype", "int8"] = Field(
        "as_dtype", description="`int8` quantises the linear layers' weights (CPU only)."
    )
    layers: int | None = Field(None, ge=1, description="Load only the first n layers; unset: all.")
    score_layers: tuple[int, int] | None = Field(
        None, description="First and last layer whose attention counts; unset: all loaded."
    )
    score_heads: tuple[tuple[NotNegative, NotNegative], ...] | None = Field(
        None,
        min_length=1,
        description="[layer, head] pairs whose attention counts, as a calibration found them; "
        "unset: all heads.",
    )
    segment_tokens: int | None = Field(
        None,
        ge=256,
        description="Longer prompts are read in segments of so many tokens, the last "
        "`protect_last` prompt tokens behind each; unset: at once.",
    )
    attention_window: int | None = Field(
        None,
        ge=16,
        description="Hidden states attend only to this many tokens before them; unset: to all.",
    )
    sink_tokens: int = Field(
        64, ge=0, description="With attention_window: first tokens that every token attends to."
    )
    cross_family: bool = Field(
        False, description="Allow a draft with another tokenizer; scores go over by characters."
    )
    deadline_seconds: float | None = Field(
        None, gt=0, description="A prompt whose draft takes longer goes dense; unset: no deadline."
    )
    memo_entries: int = Field(
        64, ge=0, description="Selections remembered for prompts that come again; 0 turns it off."
    )

    @model_validator(mode="after")
    def _layers_in_range(self) -> DraftSettings:
        if self.score_layers is not None:
            first, last = self.score_layers
            if first < 0 or last < first:
                raise ValueError("score_layers must be [first, last] with 0 <= first <= last")
            if self.layers is not None and last >= self.layers:
                raise ValueError(f"score_layers ends at {last} but only {self.layers} are loaded")
        if self.score_heads is not None:
            layers = {layer for layer, _ in self.score_heads}
            if self.layers is not None and max(layers) >= self.layers:
                raise ValueError(
                    f"score_heads names layer {max(layers)} but only {self.layers} are loaded"
                )
            first, last = self.score_layers or (0, max(layers))
            if all(layer < first or layer > last for layer in layers):
                raise ValueError("score_heads names no layer that score_layers counts")
        return self


class TargetSettings(_Section):
    """The model that answers."""

    model: str = Field(
        EMBEDDED_MODEL,
        description="Hugging Face folder, `smollm2`, or a model for measuring (docs/planning.md).",
    )
    device: str = Field("cpu", description="Torch device, for example `cpu` or `cuda:0`.")
    dtype: Dtype = Field(
        "auto", description="`auto` is bfloat16 where the processor computes in it, else float32."
    )
    max_running: int = Field(8, ge=1, description="Sequences decoded together.")
    max_queue: int = Field(64, ge=0, description="Requests that may wait; one more is refused.")
    kv_cache_tokens: int = Field(
        65536, ge=16, description="Tokens whose keys and values fit in the cache at once."
    )
    prefill_chunk_tokens: int = Field(
        1024, ge=16, description="Prompt tokens per step: the longest that a stream is held up."
    )


class ServerSettings(_Section):
    """Where Triton listens."""

    host: str = Field("127.0.0.1", description="Address to bind; loopback unless told otherwise.")
    http_port: int = Field(8000, ge=0, le=65535, description="0 takes a free port.")
    grpc_port: int = Field(8001, ge=0, le=65535, description="0 takes a free port.")
    metrics_port: int = Field(8002, ge=0, le=65535, description="0 takes a free port.")
    startup_seconds: float = Field(
        120, gt=0, description="How long the models may take to load before the start fails."
    )
    exclude_input_in_output: bool = Field(
        True, description="Leave the prompt out of unstreamed answers unless a request asks for it."
    )
    on_crash: Literal["restart", "exit"] = Field(
        "restart", description="What `specprefill serve` does when tritonserver itself dies."
    )
    probe_seconds: float = Field(
        2, gt=0, description="How often `specprefill serve` checks every model's process."
    )
    drain_seconds: float = Field(
        30, ge=0, description="How long running answers may take to end after SIGTERM."
    )
    arguments: tuple[str, ...] = Field(
        (), description="Further arguments for tritonserver, after all others."
    )


class GatewaySettings(_Section):
    """The OpenAI-compatible HTTP endpoint in front of Triton."""

    enabled: bool = Field(True, description="Start it with `specprefill serve`.")
    host: str = Field("127.0.0.1", description="Address to bind; loopback unless told otherwise.")
    port: int = Field(9000, ge=0, le=65535, description="0 takes a free port.")
    model_name: str = Field(
        "specprefill", min_length=1, description="Model name that it answers to."
    )
    api_key_file: str | None = Field(
        None, description="File with one API key per line; unset: SPECPREFILL_API_KEYS, else none."
    )
    max_body_bytes: int = Field(
        8 * 2**20, ge=1024, description="Largest request body; larger ones are refused with 413."
    )
    root_certificates: str | None = Field(
        None, description="PEM file; set: TLS to Triton's gRPC, whose certificate it vouches for."
    )


class GateSettings(_Section):
    """Goes dense where pruning would not bring the first token sooner, as measured at start-up."""

    enabled: bool = Field(True, description="false prunes whatever it costs.")
    margin: float = Field(
        0.05, ge=0, lt=1, description="Share of the dense time to first token that must be saved."
    )
    costs_folder: str | None = Field(
        None,
        description="Folder that keeps what the engines took, so that later starts need not "
        "measure; unset: measured at every start.",
    )


class RecordSettings(_Section):
    """Selections written down for `specprefill explain` and for replay; off unless asked for."""

    folder: str | None = Field(
        None, description="Folder for one JSON file per scored prompt; unset: none are written."
    )
    content: Literal["hashes", "ids"] = Field(
        "hashes", description="`hashes` keeps no prompt; `ids` keeps the prompt's token ids."
    )
    max_files: int = Field(1000, ge=1, description="Oldest records are removed beyond this many.")


class BuildSettings(_Section):
    """How `python -m build_engines` makes the two TensorRT-LLM engines."""

    tp_size: int = Field(1, ge=1, le=64, description="GPUs that share every layer of the target.")
    pp_size: int = Field(1, ge=1, le=64, description="Groups of GPUs that share its layers.")
    gpus_per_node: int = Field(8, ge=1, le=64, description="GPUs of one machine.")
    gpu_memory_gib: float = Field(80, gt=0, description="Memory of one GPU, in GiB.")
    gpu_reserve_gib: float = Field(
        2, ge=0, description="Kept free for the CUDA context, NCCL and fragmentation, in GiB."
    )
    draft_shares_gpu: bool = Field(
        True, description="The draft lives on a GPU of the target; false: on one of its own."
    )
    max_batch_size: int = Field(8, ge=1, description="Sequences that the target decodes together.")
    max_prompt_tokens: int = Field(32768, ge=16, description="Longest prompt.")
    max_new_tokens: int = Field(2048, ge=1, description="Longest answer.")
    max_num_tokens: int | None = Field(
        None, ge=16, description="Tokens of the target's largest step; unset: max_prompt_tokens."
    )
    tokens_per_block: Literal[16, 32, 64, 128] = Field(
        32, description="Tokens of one block of the target's key-value pool."
    )
    target_weights: Literal["fp8", "bfloat16"] = Field(
        "fp8", description="Format of the target's weights."
    )
    target_kv_cache: Literal["fp8", "bfloat16"] = Field(
        "fp8", description="Format of the target's keys and values; fp8 needs fp8 weights."
    )
    draft_weights: Literal["bfloat16", "fp8"] = Field(
        "bfloat16", description="Format of the draft's weights; its keys stay bfloat16."
    )
    target_checkpoint: str | None = Field(
        None, description="TensorRT-LLM checkpoint of the target that is already quantised."
    )
    calibration_dataset: str | None = Field(
        None, description="Folder of a dataset (split train, column text) to calibrate FP8 with."
    )
    calibration_samples: int = Field(512, ge=1, description="Texts to calibrate with.")
    calibration_tokens: int = Field(512, ge=16, description="Tokens of each of them.")
    speculative_decoding: Literal["none"] = Field(
        "none", description="None only: its token positions would overwrite the prompt's."
    )
    capacity_scheduler: Literal["guaranteed_no_evict", "static_batch"] = Field(
        "guaranteed_no_evict",
        description="No `max_utilization`: a paused sequence loses its positions.",
    )

    @model_validator(mode="after")
    def _formats_agree(self) -> BuildSettings:
        if self.target_kv_cache == "fp8" and self.target_weights != "fp8":
            raise ValueError("target_kv_cache fp8 needs target_weights fp8: both are calibrated")
        return self


class TensorRTSettings(_Section):
    """How `engine: tensorrt_llm` runs the engines that were built for it."""

    engine_dir: str | None = Field(
        None, description="Folder with manifest.json, draft/ and target/ that the build wrote."
    )
    kv_cache_free_gpu_memory_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the memory still free for the target's keys; unset: as built.",
    )
    enable_block_reuse: bool = Field(
        False, description="Share cached blocks between prompts with equal tokens and positions."
    )


class Settings(_Section):
    """Everything that one deployment can set."""

    engine: Literal["torch", "tensorrt_llm"] = Field(
        "torch", description="Which engines run the two models."
    )
    trust_remote_code: bool = Field(
        False, description="Run code that a model folder brings; only for folders you trust."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads per engine; unset: all cores.")
    draft: DraftSettings = DraftSettings()
    target: TargetSettings = TargetSettings()
    selection: SelectionSettings = SelectionSettings()
    sampling: SamplingSettings = SamplingSettings()
    server: ServerSettings = ServerSettings()
    gateway: GatewaySettings = GatewaySettings()
    records: RecordSettings = RecordSettings()
    gate: GateSettings = GateSettings()
    tensorrt_llm: TensorRTSettings = TensorRTSettings()
    build: BuildSettings = BuildSettings()


def load_settings(
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve the settings: defaults < file < environment < overrides.

    Args:
        path: YAML file; None takes the file that SPECPREFILL_CONFIG names, if any. A YAML file of
            the paper's reference implementation is understood as it is.
        overrides: nested values that win over everything, for example from the command line.
        environment: variables to read; None reads the process's. `SPECPREFILL__DRAFT__LAYERS=16`
            sets draft.layers.

    Raises:
        ConfigurationError: file missing or no YAML, unknown key, or value out of range.
    """
    environment = os.environ if environment is None else environment
    path = path or environment.get(CONFIG_VARIABLE) or None
    values: dict[str, Any] = {}
    source = "environment"
    if path is not None:
        values = _read_yaml(Path(path))
        source = str(path)
    _merge(values, _from_environment(environment))
    _merge(values, overrides or {})
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {_first_problem(error)}") from error


def dump_settings(settings: Settings, path: Path) -> None:
    """Write settings so that `load_settings` reads them back equal."""
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"config file {path} is no YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"config file {path} must hold a mapping of sections")
    if _REFERENCE_KEYS & values.keys():
        return _from_reference(values, path)
    return values


_REFERENCE_KEYS = frozenset(
    ("keep_strategy", "keep_kwargs", "look_ahead_cnt", "pool_kernel_size", "ignore_eos")
)


def _from_reference(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Translate a YAML file of the paper's reference implementation into sections."""
    unknown = sorted(values.keys() - _REFERENCE_KEYS)
    if unknown:
        raise ConfigurationError(
            f"{path}: {unknown[0]}: unknown key of a reference configuration; "
            f"allowed: {', '.join(sorted(_REFERENCE_KEYS))}"
        )
    strategy = values.get("keep_strategy")
    if strategy not in (None, "percentage"):
        raise ConfigurationError(f"{path}: keep_strategy: {strategy!r}; allowed: percentage")
    keep = values.get("keep_kwargs") or {}
    unknown = sorted(keep.keys() - {"chunk", "chunk_size", "percentage"})
    if unknown:
        raise ConfigurationError(
            f"{path}: keep_kwargs.{unknown[0]}: unknown key; allowed: chunk, chunk_size, percentage"
        )
    # The reference prunes prompts of any length and protects nothing.
    selection: dict[str, Any] = {
        "scorer": "lookahead",
        "look_ahead": values.get("look_ahead_cnt", 8),
        "pool_kernel": values.get("pool_kernel_size") or 1,
        "ignore_eos": values.get("ignore_eos", False),
        "chunk_size": keep.get("chunk_size", 32) if keep.get("chunk", False) else 1,
        "keep_rate": keep.get("percentage", 1.0),
        "protect_first": 0,
        "protect_last": 0,
        "protect_last_user_tokens": 0,
        "min_prompt_tokens": 0,
    }
    return {"selection": selection}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            *sections, key = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            node = values
            for section in sections:
                node = node.setdefault(section, {})
            node[key] = yaml.safe_load(text)
    return values


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{field}: unknown key"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field}: got {problem['input']!r}; {message[0].lower()}{message[1:]}"


def allowed_values(model: type[BaseModel], field: str) -> str:
    """Describe a field's range from its own declaration, so that errors and docs agree."""
    return _describe_range(model.model_json_schema()["properties"][field])


def _describe_range(info: Mapping[str, Any]) -> str:
    options = info.get("anyOf", [info])
    info = {**info, **options[0]}
    if "enum" in info:
        return ", ".join(str(value) for value in info["enum"])
    if isinstance(info.get("additionalProperties"), Mapping):
        keys = info.get("propertyNames")
        names = f", keys {_describe_range(keys)}" if keys else ""
        return f"JSON object{names}, values {_describe_range(info['additionalProperties'])}"
    kind = {"integer": "integer", "number": "finite number", "boolean": "true or false"}
    words = kind.get(info.get("type", ""), info.get("type", "value"))
    low, high = info.get("minimum"), info.get("maximum")
    over = info.get("exclusiveMinimum")
    if over is not None:
        words += f" greater than {over:g}" if isinstance(over, float) else f" greater than {over}"
    if low is not None:
        words += f" from {low}"
    if high is not None:
        words += f" up to {high}" if low is not None or over is not None else f" at most {high}"
    below = info.get("exclusiveMaximum")
    if below is not None:
        words += f" below {below:g}"
    return words


SectionT = Any


def _validate_request(model: type[SectionT], values: Mapping[str, Any]) -> SectionT:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        field = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            names = ", ".join(model.model_fields)
            raise InvalidRequestError(field, "unknown setting", names) from error
        allowed = allowed_values(model, field)
        if problem["type"] == "value_error":
            allowed = f"{allowed}; {problem['msg'].removeprefix('Value error, ')}"
        raise InvalidRequestError(field, f"got {problem['input']!r}", allowed) from error
