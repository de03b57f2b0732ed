# Two commands do everything on a fresh machine: `make run` and `make test`. Both make .venv when it is missing.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: run test faults experiments lint ui clean

run: .venv/.installed  ## the pipeline on real digits; ARGS="strategy=mirrored" changes it
	$(BIN)/python -m pipeline $(ARGS)

test: lint  ## everything: linting, types, the whole suite
	$(BIN)/python -m pytest $(ARGS)

faults: .venv/.installed  ## kills real runs and sweeps at random moments, and tells how many ended as if nobody had
	$(BIN)/python -m tests.faults $(ARGS)
	$(BIN)/python -m tests.sweep_faults
	$(BIN)/python -m tests.random_kills

experiments: .venv/.installed  ## the reference experiments whose data is at hand, against what their headers say
	$(BIN)/python -m benchmarks.experiments $(ARGS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

ui: .venv/.installed  ## MLflow's pages on the runs in outputs/
	$(BIN)/mlflow ui --backend-store-uri sqlite:///outputs/mlflow.db

clean:
	rm -rf .venv

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
