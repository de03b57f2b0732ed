# Two commands do everything on a fresh machine: `make run` and `make test`. Both create .venv if it is missing.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell command -v python$(version))) python3)
BIN := .venv/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
WORKERS ?= 3
# A worker takes whole files, the longest first: what the tests of a file share is made once.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Else every command that a test or a benchmark starts would compile the project's modules anew.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help run docs test test-engines screenshots test-fast faults mutations bench bench-quick load experiments lint tables ui clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/.installed  ## the pipeline on real digits; ARGS="strategy=mirrored" changes it
	$(BIN)/python -m pipeline $(ARGS)

test: lint  ## everything but test-engines: linting, types, the whole suite; ARGS="-k resume" selects, WORKERS=4 for more cores
	$(PYTEST) -m "not engines" $(ARGS)

test-engines: .venv/.docs  ## tests on Debian's PostgreSQL, Chromium and Slurm, on Ray and KerasHub, on hosts in network namespaces, and in a clean environment; it installs what is missing
	@(for program in ip chromium chromedriver munged slurmctld slurmd sbatch; do \
		PATH="$$PATH:/usr/sbin" command -v $$program || exit 1; done; \
		ls /usr/lib/postgresql/*/bin/postgres) >/dev/null 2>&1 || \
		($(SUDO) apt-get update && $(SUDO) apt-get install --yes --no-install-recommends chromium chromium-driver postgresql \
		iproute2 munge slurm-client slurmctld slurmd)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ray keras-hub
	$(BIN)/python -m pytest -m engines $(ARGS)

screenshots: .venv/.installed  ## those of MLflow's pages in docs/images, taken in Chromium
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -m engines tests/pipeline/test_ui.py

test-fast: .venv/.installed  ## all but the slowest tests (clusters, sweeps, whole runs)
	$(PYTEST) -m "smoke or not (slow or engines)" $(ARGS)

faults: .venv/.installed  ## kills real runs, sweeps and searches at random moments, and counts those that end as an uninterrupted one
	$(BIN)/python -m tests.chaos.faults $(ARGS)

mutations: .venv/.installed  ## breaks the code one line at a time; the tests that must notice do
	$(BIN)/python -m tests.chaos.mutations $(ARGS)

bench: .venv/.installed .bench-venv/.installed  ## measures all speeds, into docs/how-it-works/performance.md; ARGS="--only start" some
	$(BIN)/python -m benchmarks $(ARGS)

bench-quick: .venv/.installed  ## a few of them, in three minutes: fails where one is under half of what is recorded
	$(BIN)/python -m benchmarks --quick $(ARGS)

load: .venv/.installed  ## a served model under load for a minute, into docs/how-it-works/performance.md
	$(BIN)/python -m benchmarks.serving docs/how-it-works/performance.md $(ARGS)

experiments: .venv/.installed  ## the reference experiments whose data is available, against their files' headers
	$(BIN)/python -m benchmarks.experiments $(ARGS)

docs: .venv/.docs  ## the documents as a site that needs no network, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: .venv/.installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tables: .venv/.installed  ## tables and module map in the documents, made from the code and conf/
	$(BIN)/python -m tests.tables
	$(BIN)/python -m tests.editor_schema
	$(BIN)/python -m tests.module_map

ui: .venv/.installed  ## MLflow's UI on the runs in outputs/
	$(BIN)/python -m pipeline.ui $(ARGS)

clean:  ## removes .venv and .bench-venv, nothing else
	rm -rf .venv .bench-venv

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# What the project is measured against, where it can be installed; its packages are found after those of this environment.
.bench-venv/.installed: .venv/.installed
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/pip install --quiet --constraint constraints.txt numpy torch==2.13.0 || echo "PyTorch is left out"
	.bench-venv/bin/pip install --quiet --no-deps hydra-joblib-launcher || echo "Hydra's launcher for joblib is left out"
	realpath .venv/lib/python3*/site-packages > $$(echo .bench-venv/lib/python3*/site-packages)/project.pth
	touch $@
