# Each target does what it needs first, on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup page demo run test check bench engines golden docs clean

setup: $(VENV)/.ready page

# Made anew whenever what it was made from has changed, so that it is right after a pull.
$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "no venv module here: install python3-venv, or set PYTHON to a whole Python >= 3.11" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

# Built anew when its sources have changed; where there is no Node, that is said and the rest goes on.
page: $(VENV)/.ready
	@$(BIN)/python tools/page.py

demo: setup
	$(BIN)/gpuscope up --demo

run: setup
	$(BIN)/gpuscope up

engines: setup
	@tools/get-engines || echo "tests with real engines will be skipped by name"

test: setup engines
	@$(BIN)/python tools/page.py test
	$(BIN)/python -m pytest -q

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(BIN)/python tools/page.py check
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_docs.py

bench: setup
	$(BIN)/python -m benchmarks
	@$(BIN)/python tools/page.py bench

golden: setup
	GOLDEN_UPDATE=1 $(BIN)/python -m pytest -q tests/metrics

docs: setup
	$(BIN)/python -m tools.make_docs

clean:
	rm -rf $(VENV) build dist
