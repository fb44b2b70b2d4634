# Everything a contributor runs. `make` alone lists the targets.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.headrace-setup
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup jars stores browser demo test test-all test-plain test-matrix test-wheel dist docs lint typecheck bench chaos soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) jars ## create .venv, install everything, check Java (quick when nothing changed)

$(STAMP): pyproject.toml scripts/setup
	@scripts/setup
	@touch $@

# Nothing depends on these files, so that everything else works without Maven.
jars: $(STAMP)
	@scripts/setup-kafka

stores: $(STAMP) ## fetch what tests of Spark with S3 and HDFS need, with Maven (800 MB)
	@scripts/setup-stores

demo: setup ## run the demo, results in demo-out/
	$(BIN)/headrace demo --out demo-out

# What needs no Spark comes first: meanwhile types are checked, and an archive of classes is made that lets Spark start sooner.
SOON := tests/unit tests/property
LATER := $(filter-out $(SOON) tests/snapshots tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=15 $(SOON) $(LATER)
define check_with
	$(BIN)/ruff check
	@$(BIN)/python -m tests.archive & nice -n 19 $(BIN)/mypy & types=$$!; $(1) && wait $$types
endef

test: setup ## lint, type check, and run all tests
	$(call check_with,$(PYTEST) -m "not extra")

test-all: setup ## what `make test` runs, and the long tests
	$(call check_with,HEADRACE_ALL_EXAMPLES=1 $(PYTEST))
	$(MAKE) test-plain

# What queries mean must not depend on the settings of hr.session.
test-plain: setup ## the tests of what queries mean, on a session with Spark's defaults
	HEADRACE_PLAIN=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=15 -m "not extra" tests/integration

# `make test-matrix SPARK=4.1` runs one version. Each has an environment of its own, which stays for the next time.
SPARK := 4.1 4.2 4.3
test-matrix: ## a short suite on each supported version of Spark: SPARK="4.1 4.3" chooses some
	@scripts/test-matrix $(SPARK)

dist: setup ## build the source archive and the wheel in dist/
	rm -rf build dist
	$(BIN)/python -m build --outdir dist

test-wheel: dist ## install the wheel into an empty environment and run a query with it
	@scripts/test-wheel

# Sphinx comes with the extra `docs`, which only this target needs. A warning, such as a broken link, fails the build.
DOCS_STAMP := $(VENV)/.headrace-docs
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation and the API reference in site/
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --doctree-dir build/doctrees docs site
	@echo "docs: open site/index.html"

browser: setup ## install what the tests of the monitor need: Playwright, and Chromium (on Debian, as root)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

lint: setup ## ruff only
	$(BIN)/ruff check

typecheck: setup ## strict mypy only
	$(BIN)/mypy

bench: setup ## the aggregate benchmark, ours and the baseline in one run
	$(BIN)/headrace bench aggregate

# First `headrace chaos` on a query of ours with executors, then tests.chaos, which also damages files and compares all state.
# `make chaos SEEDS=20 FAULTS=10`, `make chaos SEED=7`, `make chaos DATA=edits.json.gz SECONDS=600`; else the defaults of tests.chaos hold.
# The variables count only when given on the command line: bash has a SECONDS of its own.
given = $(if $(filter command line,$(origin $(1))),--$(2) $($(1)))
chaos: setup ## a campaign of faults, compared with Spark's batch answer: SEEDS=20, FAULTS=10, SEED=..., DATA=..., AT_ONCE=2, OUT=...
	@$(BIN)/python -m tests.archive
	@rm -rf chaos-out/input && mkdir -p chaos-out && $(BIN)/python -m tests.chaos.own 200000 chaos-out/input
	CHAOS_INPUT=chaos-out/input $(BIN)/headrace chaos tests/chaos/own.py --rows 300 --out chaos-out/command --option headrace.replicas=1 \
		--option headrace.checkpointSeconds=5 $(call given,FAULTS,faults) $(call given,SEED,seed)
	$(BIN)/python -m tests.chaos $(call given,SEEDS,seeds) $(call given,FAULTS,faults) $(call given,SEED,seed) \
		$(foreach file,$(DATA),--data $(file)) $(call given,SECONDS,seconds) $(call given,OUT,out) $(call given,AT_ONCE,at-once)

soak: setup ## a steady load, judged by whether anything grows: SECONDS=..., results in soak-out/
	$(BIN)/python -m tests.soak $(call given,SECONDS,seconds)

clean: ## remove what builds, tests and runs leave behind (keeps environments)
	rm -rf demo-out bench-out chaos-out soak-out site build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
