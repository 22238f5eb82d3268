# SPDX-License-Identifier: Apache-2.0
"""`specprefill build` forwards to build_engines."""

from __future__ import annotations

import importlib
from pathlib import Path

from specprefill import cli
from specprefill.errors import SpecPrefillError
from typer.testing import CliRunner

MODELS = Path(__file__).parent / "data" / "models"


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, ["build", *arguments])


def test_its_help_is_that_of_the_builder():
    result = invoke("--help")
    assert result.exit_code == 0
    assert "--dry-run" in result.output
    assert "specprefill build" in result.output


def test_a_dry_run_shows_the_plan(tmp_path):
    config = tmp_path / "deployment.yaml"
    config.write_text(
        f"engine: tensorrt_llm\n"
        f"target: {{model: {MODELS / 'llama-3.1-8b'}}}\n"
        f"draft: {{model: {MODELS / 'llama-3.2-1b'}}}\n"
    )
    result = invoke("--config", str(config), "--output", str(tmp_path / "engines"), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "rank0.engine" in result.output


def test_an_error_of_the_builder_is_its_exit_code():
    assert invoke("--config", "missing.yaml").exit_code == 1


def test_a_missing_builder_is_named(monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}", name="build_engines")

    monkeypatch.setattr(importlib, "import_module", missing)
    result = invoke("--dry-run")
    assert isinstance(result.exception, SpecPrefillError)
    assert "build_engines is not importable" in str(result.exception)
