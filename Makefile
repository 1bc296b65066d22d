# Every target does its own set-up; a second call finds it done.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup model train test lint format docs clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

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

clean: ## Remove the virtual environment and caches, but no runs
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
