# Everything a checkout needs. `make` alone lists the targets.
#   PYTHON=...       the interpreter .venv is made from (3.11 or newer)
#   CONSTRAINTS=...  another constraints file, for example with a CUDA build of torch
#   JOBS=...         test processes side by side
#   ARGS=...         passed on to the scenario (demo) or to pytest (test)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint style tree types layers format clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
CONSTRAINTS ?= constraints.txt
ARGS ?=
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

# One thread per process: on a busy machine a second one costs far more than it brings.
export OMP_NUM_THREADS ?= 1

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

demo: $(VENV)/.runtime  ## run the default drift scenario and say where its report is
	@$(BIN)/python -m sao_gym.run scenario $(ARGS)

test: $(VENV)/.dev  ## run the whole test suite
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: style types layers  ## style, format, types and layers

style: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# Types and layers are checked on an installed tree: in the checkout the plug-in folders are not yet
# inside `sao_gym`, so a type checker would see almost nothing of them, and pass.
tree: $(VENV)/.dev
	@rm -rf build
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --no-deps --no-build-isolation --no-compile --target build/tree .
	@rm -rf *.egg-info  # in a checkout it would hide the entry points that are installed

types: tree
	@cd build/tree && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
	    --cache-dir ../../.mypy_cache --strict -p sao_gym

layers: tree
	@cd build/tree && ../../$(BIN)/lint-imports ../../pyproject.toml --no-cache

format: $(VENV)/.dev  ## rewrite the code in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:  ## remove what was built and installed here; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second call install nothing; a changed dependency installs again.
$(BIN)/python:
	@echo "creating $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing sao-gym (about a minute the first time)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing sao-gym and its development tools (about a minute the first time)"
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.runtime $@
