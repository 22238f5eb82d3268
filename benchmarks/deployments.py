# SPDX-License-Identifier: Apache-2.0
"""The deployments that the figures measure."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specprefill.cli import default_config
from specprefill.embedded_model import resolve_model
from specprefill.memory_plan import ModelShape
from specprefill.model_sources.shapes import write_random_model
from specprefill.pipeline import Pipeline
from specprefill.settings import Settings, load_settings

from benchmarks.options import Options

_TINY = ModelShape(
    layers=4,
    query_heads=6,
    kv_heads=2,
    head_size=8,
    hidden_size=48,
    intermediate_size=96,
    vocabulary_size=49152,
    tied_embeddings=True,
    max_positions=8192,
)


def deployment(
    options: Options,
    config: str | None = None,
    target_model: str | None = None,
    **sections: Mapping[str, Any],
) -> Settings:
    """Return the settings of a deployment, ready to be measured.

    Nothing is remembered between requests: a selection from memory would be no measurement.

    Args:
        options: how the figure is measured.
        config: name of a file in configs/; None: the one that the options name.
        target_model: model in place of the configuration's.
        **sections: further settings by section.
    """
    path = default_config().parent / config if config else options.config or default_config()
    own: dict[str, dict[str, Any]] = {
        "server": {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
        "draft": {"memo_entries": 0},
        "target": {"model": target_model} if target_model else {},
        "selection": {},
        "gateway": {"enabled": False},
    }
    if options.device == "cuda":
        # Int8 linear layers are of the CPU.
        own["draft"] |= {"device": "cuda:0", "weights": "as_dtype"}
        own["target"] |= {"device": "cuda:0"}
    if options.smoke:
        tiny = str(tiny_model(options.output))
        own["draft"] |= {"model": tiny, "layers": 3, "score_layers": [1, 2]}
        own["target"] |= {"model": tiny}
        own["selection"] |= {"min_prompt_tokens": 64}
    for section, values in sections.items():
        own[section] = {**own.get(section, {}), **values}
    return load_settings(path, own, environment={})


def tiny_model(folder: Path) -> Path:
    """Return the folder of a tiny model with random weights, written on the first call."""
    tiny = folder / "tiny-model"
    if not (tiny / "config.json").exists():
        write_random_model(_TINY, "tiny", resolve_model("smollm2"), tiny)
    return tiny


@contextmanager
def pipeline(settings: Settings) -> Iterator[Pipeline]:
    """Load a deployment into this process; its memory is given back at the end."""
    loaded = Pipeline(settings)
    try:
        yield loaded
    finally:
        loaded.close()
        del loaded
        gc.collect()
