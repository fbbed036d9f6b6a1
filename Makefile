# Two commands: `make train` and `make test`. Both set up what they need; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: train test lint clean

train: $(READY)
	$(BIN)/stoker train --env CartPole-v1 --timesteps 100k --require-reward 475

test: lint
	$(BIN)/python -m pytest -m 'not alone' --numprocesses 2 --dist worksteal
	$(BIN)/python -m pytest -m alone

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	touch $(READY)

clean:
	rm -rf $(VENV) build *.egg-info
