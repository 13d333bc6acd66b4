# make demo     plan, certify and verify a small window on a fresh machine
# make test     every check that a change must pass
# make format   bring the sources into shape
#
# Needs Python 3.11 or newer and make. VENV=path uses another environment than .venv.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

RUNTIME := $(VENV)/.rpopt-runtime
DEV     := $(VENV)/.rpopt-dev

.PHONY: demo test format

demo: $(RUNTIME)
	$(BIN)/rpopt window generate --seed 0 --out demo/window.npz
	$(BIN)/rpopt plan demo/window.npz --dp 8 --ep 4 --token-cap 16384 \
	    --preset gpt-oss-20b --seed 0 --max-runtime 5 --out-dir demo
	$(BIN)/rpopt compare demo/window.npz demo/window.plan.json
	$(BIN)/rpopt verify demo/window.npz demo/window.plan.json
	$(BIN)/rpopt show demo/window.plan.json --window demo/window.npz

test: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed anew whenever the requirements change.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ $(RUNTIME)
