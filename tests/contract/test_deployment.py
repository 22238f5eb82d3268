# SPDX-License-Identifier: Apache-2.0
"""Settings -> a whole deployment on either kind of engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_tensorrt_llm
import pytest
from conftest import ENGINES, SCORE_LAYERS
from specprefill.errors import ConfigurationError
from specprefill.pipeline import Pipeline
from specprefill.settings import Settings

TEXT = " ".join(f"w{(7 * index) % 290}" for index in range(300))


def settings(engine: str, model_folder: Path, engine_folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "engine": engine,
            "draft": {"model": str(model_folder), "dtype": "float32", "score_layers": SCORE_LAYERS},
            "target": {"model": str(model_folder), "dtype": "float32"},
            "selection": {"min_prompt_tokens": 0, "keep_rate": 0.3, "chunk_size": 8},
            "sampling": {"max_tokens": 12},
            "tensorrt_llm": {"engine_dir": str(engine_folder)},
        }
    )


@pytest.fixture
def pipelines(
    double: fake_tensorrt_llm.Double, model_folder: Path, engine_folder: Path
) -> Iterator[list[Pipeline]]:
    made = [Pipeline(settings(engine, model_folder, engine_folder)) for engine in ENGINES]
    yield made
    for pipeline in made:
        pipeline.close()


@pytest.mark.parametrize("scorer", ["zscore", "lookahead"])
@pytest.mark.parametrize("keep_rate", [0.3, 1.0])
def test_both_engines_keep_and_answer_the_same(
    pipelines: list[Pipeline], scorer: str, keep_rate: float
) -> None:
    selection = {"scorer": scorer, "keep_rate": keep_rate}
    generations = [pipeline.start(TEXT, selection=selection) for pipeline in pipelines]
    texts = ["".join(piece.text for piece in generation.pieces) for generation in generations]
    assert texts[0] == texts[1] != ""
    kept = [generation.speculation.selection.kept.tolist() for generation in generations]
    assert kept[0] == kept[1]
    assert (len(kept[0]) == 300) == (keep_rate == 1.0)


def test_draft_failures_go_dense(pipelines: list[Pipeline]) -> None:
    generation = pipelines[1].start(TEXT, selection={"query_window": 200, "scorer": "zscore"})
    assert generation.speculation.draft_failed
    assert "query_window" in generation.speculation.selection.reason
    assert "".join(piece.text for piece in generation.pieces)


def test_missing_engine_folder_names_the_setting(model_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tensorrt_llm\.engine_dir"):
        Pipeline(Settings.model_validate({"engine": "tensorrt_llm"}))


def test_torch_deployments_import_no_adapter() -> None:
    program = (
        "import sys, specprefill.engines as engines; from specprefill.settings import Settings\n"
        "engines.make_draft(Settings())\n"
        "print([name for name in sys.modules if 'trtllm' in name or 'tensorrt_llm' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
