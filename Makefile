# Each target does what it needs first, on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt

.PHONY: setup page demo run test test-fast check mutants bench engines golden docs clean

setup: $(VENV)/.ready-to-test page

# Installed again whenever the lists of packages have changed, so that it is right after a pull.
$(VENV)/.ready-to-run: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating the virtual environment $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	  echo "no venv module here: install python3-venv, or set PYTHON to a complete Python >= 3.11" >&2; exit 1; }
	@echo "installing gpuscope and the packages it needs (pip)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.ready-to-test: $(VENV)/.ready-to-run
	@echo "installing the packages that tests need (pip)"
	@$(PIP_INSTALL) --quiet -e '.[test]'
	@touch $@

# Built again when its sources have changed; without Node, that is said and everything else works.
page: $(VENV)/.ready-to-run
	@$(BIN)/python tools/page.py

demo: $(VENV)/.ready-to-run page
	$(BIN)/gpuscope up --demo

run: $(VENV)/.ready-to-run page
	$(BIN)/gpuscope up

engines: setup
	@tools/get-engines || echo "tests with real engines will be skipped by name"

test: setup engines
	@$(BIN)/python tools/page.py test
	$(BIN)/python -m pytest -q -n auto --dist loadfile --durations 15

# Under a minute: no network, no engine, no process of its own.
test-fast: setup
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not not_fast and not slow" \
	  --hypothesis-profile fast --durations 5

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(BIN)/python tools/page.py check
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_architecture_doc.py tests/test_docs.py

# Small changes of the pure core, each of which some test must notice; a few minutes.
mutants: setup
	$(BIN)/python -m tools.mutants $(MUTANTS)

bench: setup
	$(BIN)/python -m benchmarks
	@$(BIN)/python tools/page.py bench

golden: setup
	GOLDEN_UPDATE=1 $(BIN)/python -m pytest -q tests/metrics

# Without the page: it is built from types that are written here.
docs: $(VENV)/.ready-to-test
	$(BIN)/python -m tools.make_docs

clean:
	rm -rf $(VENV) build dist
