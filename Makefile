# For developers; users have pip and `mtx`. Everything installs into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo check test clean

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

clean:
	rm -rf .venv
