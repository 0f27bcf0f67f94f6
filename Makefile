# For developers; users have pip and `mtx`. Everything installs into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo check test test-reliability clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch .venv/installed

demo: setup
	$(BIN)/mtx train demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup
	$(BIN)/pytest

test-reliability: setup # all of what `make test` runs a share of; about an hour
	MTX_RELIABILITY=nightly $(BIN)/pytest tests/reliability

clean:
	rm -rf .venv
