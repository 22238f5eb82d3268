# SPDX-License-Identifier: Apache-2.0
"""Names, parameters and values of the installed TensorRT-LLM against those that were read."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

from gpu_check.bench import Bench, CheckSkippedError
from gpu_check.registry import Check, repository_root

_GROUP = "interface"
_CONTRACT = repository_root() / "tests" / "contract"
_BINDINGS = "tensorrt_llm.bindings.executor"


def binding_parameters(bench: Bench) -> None:
    """Compare the constructors' parameters and the enumerations of the executor's bindings."""
    facts = _facts("trtllm_api.json")
    problems: list[str] = []
    compared = 0
    for path, fact in facts["symbols"].items():
        if not path.startswith(_BINDINGS):
            continue
        found = _find(path)
        if found is None:
            problems.append(f"{path} does not exist")
            continue
        optional = set(facts["optional"].get(path.rpartition(".")[2], ()))
        for name in fact.get("params") or fact.get("values") or ():
            compared += 1
            if name not in optional and not _has_name(found, name):
                problems.append(f"{path} has no {name}")
    bench.note("names compared", compared)
    bench.require(not problems, "; ".join(problems))


def build_parameters(bench: Bench) -> None:
    """Compare the parameters of what the engine build calls."""
    problems: list[str] = []
    compared = 0
    for path, names in _facts("build_api.json")["callables"].items():
        found = _find(path)
        if found is None:
            problems.append(f"{path} does not exist")
            continue
        parameters = _signature(found)
        if parameters is None:
            continue
        compared += 1
        missing = [name for name in names if name not in parameters]
        if missing:
            problems.append(f"{path} has no parameter {', '.join(missing)}")
    bench.note("signatures compared", compared)
    bench.require(not problems, "; ".join(problems))


def enumeration_values(bench: Bench) -> None:
    """Compare the numbers and words of enumerations that end up in engines."""
    problems: list[str] = []
    for path, values in _facts("build_api.json")["enums"].items():
        found = _find(path)
        for name, value in values.items():
            member = getattr(found, name, None)
            actual = getattr(member, "value", member)
            if actual != value:
                problems.append(f"{path}.{name} is {actual}, not {value}")
    bench.require(not problems, "; ".join(problems))


def optional_features(bench: Bench) -> None:
    """Note what builds of the 1.2 line differ in; the adapters look for these themselves."""
    for owner, name in (
        ("Request", "cache_salt_id"),
        ("Request", "position_ids"),
        ("SamplingConfig", "prompt_ignore_length"),
        ("KvCacheConfig", "max_gpu_total_bytes"),
    ):
        found = _find(f"{_BINDINGS}.{owner}")
        bench.note(f"{owner}.{name}", found is not None and _has_name(found, name))
    bench.require(bool(bench.figures["Request.position_ids"]), "requests take no position ids")


def request_round_trip(bench: Bench) -> None:
    """Build the native objects of one request with every keyword that the target uses."""
    api = importlib.import_module(_BINDINGS)
    request = api.Request(
        input_token_ids=[1, 2, 3],
        max_tokens=2,
        streaming=True,
        sampling_config=api.SamplingConfig(top_k=1),
        output_config=api.OutputConfig(
            return_log_probs=True, exclude_input_from_output=True, return_perf_metrics=True
        ),
        end_id=7,
        position_ids=[4, 9, 11],
        stop_words=[[5]],
        bad_words=None,
    )
    bench.require(list(request.position_ids) == [4, 9, 11], "position ids are not kept")
    if hasattr(request, "cache_salt_id"):
        largest = 2**64 - 1
        request.cache_salt_id = largest
        bench.require(request.cache_salt_id == largest, "a 64-bit cache salt is not kept")


def unused_alternative(bench: Bench) -> None:
    """Stand for a fact that was read and that nothing here relies on."""
    raise CheckSkippedError("nothing in this repository uses it")


def _facts(name: str) -> Any:
    file = _CONTRACT / name
    if not file.is_file():
        raise CheckSkippedError(f"tests/contract/{name} is not in this copy of the repository")
    return json.loads(file.read_text())


def _find(path: str) -> Any:
    """Return the object with a dotted name, or None."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for name in parts[split:]:
            found = getattr(found, name, None)
        return found
    return None


def _has_name(found: Any, name: str) -> bool:
    """Look for a parameter, property or value; bindings say them only in their doc strings."""
    if hasattr(found, name):
        return True
    texts = (found.__init__.__doc__, found.__doc__, getattr(found, "__nb_signature__", ""))
    return any(name in str(text) for text in texts)


def _signature(found: Any) -> set[str] | None:
    """Return a callable's parameters; None where it says nothing or takes any keyword."""
    fields = getattr(found, "model_fields", None) or getattr(found, "__dataclass_fields__", None)
    if fields:
        return set(fields)
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in parameters.values()}
    return None if inspect.Parameter.VAR_KEYWORD in kinds else set(parameters)


def _check(name: str, claim: str, body: Any, *needs: str) -> Check:
    return Check(name, _GROUP, "tensorrt", claim, needs or ("tensorrt_llm",), body)


CHECKS = [
    _check(
        "binding parameters",
        "the executor's bindings have every class, keyword and value of trtllm_api.json",
        binding_parameters,
    ),
    _check(
        "build parameters",
        "what the build calls takes the keywords of build_api.json",
        build_parameters,
    ),
    _check("enumerations", "enumerations have the values that were read", enumeration_values),
    _check("optional features", "requests take position ids; others noted", optional_features),
    _check("request", "a request keeps position ids and a 64-bit salt", request_round_trip),
    _check(
        "extra ids in the block key",
        "extra token ids keep positions apart in the block cache",
        unused_alternative,
        "extra ids",
    ),
    _check(
        "paged pool owned by Python",
        "a session can fill a paged pool in chunks",
        unused_alternative,
        "python paged pool",
    ),
    _check(
        "plugin inside the engine",
        "an engine can carry the plugin as PTX",
        unused_alternative,
        "ahead-of-time plugin",
    ),
]
