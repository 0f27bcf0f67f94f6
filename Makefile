# For developers; users have pip and `mtx`. Everything installs into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo check test test-fast test-wheel test-reliability first-light clean

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
	$(BIN)/python scripts/size.py

test: setup # in as many processes as there are cores, of one thread each
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test-fast: setup # within a minute on two cores: the unit tests that take less than a second each
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests/unit -m "not slow and not net and not seconds"

test-wheel: setup # builds the wheel and installs it with its dependencies into a fresh environment
	OMP_NUM_THREADS=1 $(BIN)/pytest -m wheel tests/integration/test_wheel.py

test-reliability: setup # all of what `make test` runs a share of, in half an hour or so
	MTX_RELIABILITY=nightly OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests/reliability

first-light: setup # what mtx does on this machine's GPU; DATA=DIR has Multi30k (scripts/first_light/README.md)
	$(BIN)/python scripts/first_light/first_light.py

clean:
	rm -rf .venv
