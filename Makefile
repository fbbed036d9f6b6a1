# `make train`, `make test` and `make docs` set up what they need; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: train test docs lint clean

train: $(READY)
	$(BIN)/stoker train --env CartPole-v1 --timesteps 100k --require-reward 475

test: lint
	$(BIN)/python -m pytest -m 'not alone' --numprocesses 2 --dist worksteal
	$(BIN)/python -m pytest -m alone

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	touch $(READY)

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS_READY)

clean:
	rm -rf $(VENV) build site *.egg-info
