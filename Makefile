# On a fresh machine, `make run` or `make test` is all you need. Both create .venv if it is missing.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell command -v python$(version))) python3)
BIN := .venv/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
WORKERS ?= 3
# Each worker runs complete files, the longest first, so fixtures shared by the tests of a file are built once.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Otherwise every command that a test or a benchmark starts would compile the project's modules again.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help run docs test test-engines screenshots test-fast faults mutations bench bench-quick load gpu-check experiments lint tables ui clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/.installed  ## run the pipeline on real digits; ARGS="strategy=mirrored" passes settings
	$(BIN)/python -m pipeline $(ARGS)

test: lint  ## lint, check types and run all tests except test-engines; ARGS="-k resume" selects tests, WORKERS=4 uses more cores
	$(PYTEST) -m "not engines" $(ARGS)

test-engines: .venv/.docs  ## run the tests that need PostgreSQL, Chromium, Slurm, Ray, KerasHub, network namespaces or a clean environment; installs what is missing
	@(for program in ip chromium chromedriver munged slurmctld slurmd sbatch; do \
		PATH="$$PATH:/usr/sbin" command -v $$program || exit 1; done; \
		ls /usr/lib/postgresql/*/bin/postgres) >/dev/null 2>&1 || \
		($(SUDO) apt-get update && $(SUDO) apt-get install --yes --no-install-recommends chromium chromium-driver postgresql \
		iproute2 munge slurm-client slurmctld slurmd)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ray keras-hub
	$(BIN)/python -m pytest -m engines $(ARGS)

screenshots: .venv/.installed  ## take the screenshots of MLflow's pages for docs/images, in Chromium
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -m engines tests/pipeline/commands/test_ui.py

test-fast: .venv/.installed  ## run all but the slowest tests (clusters, sweeps, whole runs)
	$(PYTEST) -m "smoke or not (slow or engines)" $(ARGS)

faults: .venv/.installed  ## kill real runs, sweeps and searches at random, and count those that end like an uninterrupted one
	$(BIN)/python -m tests.chaos.faults $(ARGS)

mutations: .venv/.installed  ## break the code one line at a time, and check that the tests fail
	$(BIN)/python -m tests.chaos.mutations $(ARGS)

bench: .venv/.installed .bench-venv/.installed  ## run all benchmarks and update docs/how-it-works/performance.md; ARGS="--only start" runs some
	$(BIN)/python -m benchmarks $(ARGS)

bench-quick: .venv/.installed  ## run a few benchmarks in three minutes; fails if one is below half of its recorded speed
	$(BIN)/python -m benchmarks --quick $(ARGS)

load: .venv/.installed  ## load-test a served model for a minute and update docs/how-it-works/performance.md
	$(BIN)/python -m benchmarks.serving docs/how-it-works/performance.md $(ARGS)

gpu-check: .venv/.gpu  ## measure speeds and check results on a GPU, in at most eight minutes; ARGS="--only cnn" selects parts
	$(BIN)/python -m benchmarks.gpu $(ARGS)

experiments: .venv/.installed  ## run the reference experiments whose data is available, and check the results stated in their files
	$(BIN)/python -m benchmarks.experiments $(ARGS)

docs: .venv/.docs  ## build the documentation site in site/, which works offline
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: .venv/.installed  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tables: .venv/.installed  ## regenerate tables, module maps and conf/schema.json from the code and conf/
	$(BIN)/python -m tests.tables
	$(BIN)/python -m tests.editor_schema
	$(BIN)/python -m tests.module_map

ui: .venv/.installed  ## start MLflow's UI for the runs in outputs/
	$(BIN)/python -m pipeline ui $(ARGS)

clean:  ## delete .venv and .bench-venv, nothing else
	rm -rf .venv .bench-venv

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv/.gpu: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gpu]'
	touch $@

# Packages that benchmarks compare with, if they can be installed; packages of .venv are found as well.
.bench-venv/.installed: .venv/.installed
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/pip install --quiet --constraint constraints.txt numpy torch==2.13.0 || echo "skipping PyTorch"
	.bench-venv/bin/pip install --quiet --no-deps hydra-joblib-launcher || echo "skipping Hydra's joblib launcher"
	realpath .venv/lib/python3*/site-packages > $$(echo .bench-venv/lib/python3*/site-packages)/project.pth
	touch $@
