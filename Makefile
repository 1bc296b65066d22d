# Every target does its own set-up; a second call finds it done.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup model train test lint format docs bench bench-quick sample-factory clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Virtual environment with everything for a machine without a GPU

# CPU torch first: the packages that want torch then find it. PyPI's torchvision, torchaudio and torchcodec need CUDA
# and break beside it; serving text needs none of them.
$(STAMP): setup.cfg pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install python3.11, or name it with PYTHON=..."; exit 1; }
	@echo "installing into $(VENV): about two minutes and 5 GB, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "torch==2.13.0"
	$(BIN)/pip install --quiet --editable ".[cpu,dev,minihack]"
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

model: setup ## Fetch and convert the embedded language model, once
	$(BIN)/python -m oni_ray.serving.model_preparation

train: model ## Train the quickstart: an agent in NetHack, rewarded by a language model's labels
	$(BIN)/oni-ray train experiments/quickstart.yaml

test: model lint ## Lint, type check and all tests
	$(BIN)/python -m pytest

lint: setup ## Format check, lint and type check
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy

format: setup ## Format the code
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

docs: setup ## Generate docs/configuration.md and docs/metrics.md from the code
	$(BIN)/python -m oni_ray.config.reference > docs/configuration.md
	$(BIN)/python -m oni_ray.telemetry.metrics > docs/metrics.md

# Sample Factory needs other releases of gymnasium and numpy, so it has an environment of its own.
sample-factory: .venv-sample-factory/.installed

.venv-sample-factory/.installed: benchmarks/sample_factory_requirements.txt
	$(PYTHON) -m venv .venv-sample-factory
	.venv-sample-factory/bin/pip install --quiet --requirement $<
	.venv-sample-factory/bin/pip install --quiet --no-deps nle==1.3.0
	touch $@

bench: model sample-factory ## Every benchmark, into benchmarks/results.json and docs/benchmarks.md: an hour on an idle machine
	$(BIN)/python -m benchmarks

bench-quick: model ## The main ratios with few and short turns, a few minutes
	$(BIN)/python -m benchmarks --quick

clean: ## Remove the virtual environment and caches, but no runs
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
