# Millpond. `make help` lists what there is. Every target sets up what it needs in .venv, with uv when it is on
# PATH and with plain venv + pip otherwise.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
RUNS   := $(VENV)/.runs
UV     := $(shell command -v uv 2>/dev/null)

# What is installed here is compiled when it is first imported, and thousands of programs of tests import it. Where this is
# set, as in many containers, each of them would compile it anew: up to a third more CPU for a lot of tests.
unexport PYTHONDONTWRITEBYTECODE

TEST   := $(BIN)/python -m pytest -q -m 'not soak and not slow'
SLOW   := $(BIN)/python -m pytest -q -m 'slow and not soak'
BESIDE := $(BIN)/python tools/beside.py

.DEFAULT_GOAL := help
.PHONY: help setup demo chromium test check lint busy coverage matrix format bench soak docs clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(STAMP): pyproject.toml conformance/pyproject.toml tools/venv.sh
	@UV="$(UV)" sh tools/venv.sh "$(PYTHON)" $(VENV) dev
	@touch $@

$(RUNS): pyproject.toml tools/venv.sh
	@[ -e $(STAMP) ] || UV="$(UV)" sh tools/venv.sh "$(PYTHON)" $(VENV)
	@touch $@

setup: $(STAMP)  ## make .venv with everything that development needs

demo: $(RUNS)  ## see workers killed and nothing lost (ends by itself when there is no terminal)
	@$(BIN)/millpond demo

# The lots of tests, each a pytest of its own. Most of them wait for a server, a process or a clock rather than for a core,
# so seven at a time take little longer than one; the longest come first, and those that need a core to the end come early.
UNIT_LOTS := "$(TEST) tests/unit/keyed tests/conformance" "$(TEST) tests/unit --ignore=tests/unit/keyed"
TYPES     := "$(BIN)/mypy && $(BIN)/mypy --config-file tests/mypy.ini tests"
LONG_LOTS := "$(BIN)/python tools/matrix.py" \
  "$(TEST) tests/integration --ignore-glob='*/test_temporal_*' --ignore-glob='*/test_keyed_*' --ignore-glob='*/test_cli*' --ignore-glob='*/test_pytest_plugin.py'" \
  "$(SLOW) tests/chaos/test_keyed_chaos.py" "$(TEST) tests/integration/test_keyed_*" "$(TEST) tests/integration/test_temporal_*" \
  "$(TEST) tests/integration/test_cli* tests/integration/test_pytest_plugin.py"
MORE_LOTS := "$(SLOW) --ignore=tests/chaos/test_keyed_chaos.py --ignore-glob='*/test_temporal_*'" "$(TEST) tests/stress" \
  "$(SLOW) tests/integration/test_temporal_* tests/chaos/test_temporal_chaos.py" "$(TEST) tests/property tests/chaos" $(TYPES) \
  "$(TEST) tests/docs tests/replay" "$(TEST) tests/browser"

$(BIN)/promtool: $(STAMP)
	@sh tools/debian.sh $(BIN) "prometheus promtool" prometheus

$(BIN)/pgbouncer: $(STAMP)
	@sh tools/debian.sh $(BIN) pgbouncer pgbouncer libevent-2.1-7 libc-ares2

chromium:
	@sh tools/browser.sh

test: $(STAMP)  ## run everything that must pass: checks, all tests, also on the other Pythons of this machine
	@$(MAKE) --no-print-directory -j 4 lint chromium $(BIN)/promtool $(BIN)/pgbouncer
	@$(BESIDE) 7 $(LONG_LOTS) $(UNIT_LOTS) $(MORE_LOTS)
	@echo "all green"

check: lint  ## format, lint, types, layers, and the quick tests: two minutes
	@$(BESIDE) 2 $(UNIT_LOTS) $(TYPES)

lint: $(STAMP)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/python tools/twins.py --check
	$(BIN)/lint-imports --no-cache

busy: $(STAMP)  ## run `make test` beside two processes that use up the cores: it must be green there too
	$(BIN)/python tools/busy.py $(MAKE) test

coverage: $(STAMP)  ## report the branch coverage of the quick tests
	$(BIN)/python -m pytest -q -m "not soak and not slow" --cov --cov-report=term:skip-covered --timeout 120 tests/unit

matrix: $(STAMP)  ## run the tests on every other supported Python that is installed
	@$(BIN)/python tools/matrix.py --all

format: $(STAMP)  ## format the code
	$(BIN)/python tools/twins.py
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

bench: $(STAMP)  ## run the benchmarks side by side with their rivals; writes benchmarks/results, tables, README's figures
	@UV="$(UV)" sh tools/venv.sh "$(PYTHON)" $(VENV) bench
	$(BIN)/python benchmarks/run.py $(BENCH)
	$(BIN)/python tools/figures.py

soak: $(STAMP)  ## run the long storms; those of some tests: SOAK=tests/chaos/test_resource_chaos.py
	$(BIN)/python -m pytest -q -m soak --timeout 1800 $(SOAK)

docs: $(STAMP)  ## build the documentation into site/; fails on a broken link
	@UV="$(UV)" sh tools/venv.sh "$(PYTHON)" $(VENV) docs
	$(BIN)/python tools/links.py
	$(BIN)/zensical build --clean --strict
	$(BIN)/python tools/links.py --site

clean:  ## remove what was built
	rm -rf .venv .venv-* site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
