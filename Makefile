# `make demo` tries mtx; the rest is for developers. Everything installs into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo check test test-fast test-all test-pages test-wheel test-reliability first-light release docs docs-references docs-output clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing mtx and the developers' tools into .venv; this takes some minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch .venv/demo .venv/installed

demo: .venv/demo # what users install, and a training of a minute; RUN=DIR is where
	$(BIN)/mtx train demo $(if $(RUN),run_dir="$(RUN)")

.venv/demo: pyproject.toml constraints.txt
	@echo "Installing mtx and its packages into .venv. The largest is torch, which may take some minutes to download."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	touch .venv/demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.checks.size
	$(BIN)/python -m scripts.checks.plain_code

test: setup # what each change must pass: 5 minutes on two cores, in as many processes as there are cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal --durations 20 -m "not extended and not slow and not net and not wheel"

test-fast: setup # within a minute on two cores: the unit tests that take less than a second each
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests/unit -m "not extended and not slow and not net and not seconds"

test-all: setup # `make test` and the extended tests, as plain `pytest` runs them: a quarter of an hour on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test-pages: setup # the pages of mtx in Chromium: fails, where `make test-all` would skip these tests, without it
	MTX_BROWSER=required OMP_NUM_THREADS=1 $(BIN)/pytest -n auto tests/browser

test-wheel: setup # builds the wheel and installs it with its dependencies into a fresh environment
	OMP_NUM_THREADS=1 $(BIN)/pytest -m wheel tests/integration/test_wheel.py

test-reliability: setup # all of what `make test-all` runs a share of, in half an hour or so
	MTX_RELIABILITY=nightly OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests/reliability

first-light: setup # what mtx does on this machine's GPU, in fifteen minutes (scripts/first_light/README.md)
	$(BIN)/python scripts/first_light/first_light.py

release: setup # builds and checks a release in dist/; uploads nothing
	$(BIN)/python -m scripts.package.release

docs: .venv/docs # the site, in site/: fails for a broken link or anchor, and for a page that the navigation lacks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-references: setup # the tables of docs/reference that are generated: settings, commands, recipes
	$(BIN)/python -m scripts.docs.references

docs-output: setup # prints again what the pages show as printed: 10 minutes; DATA=DIR has Multi30k, whose blocks take longer
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.docs.output $(if $(DATA),--data "$(DATA)")

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch .venv/docs

clean:
	rm -rf .venv
