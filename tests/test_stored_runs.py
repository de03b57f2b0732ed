"""Runs of an earlier version are resumed, forked, evaluated and used for predictions, with the numbers they had then.

See `tests/stored_runs/README.md` for what is stored, and for what to do if a test here fails.
"""

import json
import math
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api import Run, run_experiment
from tests.pipeline.experiments import Patch
from tests.stored_runs import make
from tests.stored_runs.make import HALF, KILLED, NEW, STORED, WORDS, Use

pytestmark = pytest.mark.slow

SINGLE_PRECISION, HALF_PRECISION = 1e-5, 2e-2
"""Largest difference of weights and metrics, relative for metrics above 1.

The stored numbers are from processes that optimize their graphs and use all cores. The tests do neither, and other
processors have other instructions, so they round differently.
"""


def use(name: str) -> Use:
    """Return what the uses of a stored run must give."""
    return Use(**json.loads((STORED / f"{name}.json").read_text()))


def tolerance(name: str) -> float:
    return HALF_PRECISION if name == HALF else SINGLE_PRECISION


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the stored runs in `outputs`, and with their data; it is the working directory."""
    folder = tmp_path_factory.mktemp("stored")
    for name in WORDS:
        with tarfile.open(STORED / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    with Patch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def killed(root: Path) -> Run:
    """The run that was killed, after it was resumed."""
    run = Run(make.run_folder(root, KILLED))
    assert run.status == "INTERRUPTED"
    return run_experiment([f"resume={run.folder.name}", "tracking=off"])


@pytest.fixture(params=WORDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(name: str, root: Path, killed: Run) -> Run:
    """Each stored run, finished."""
    return killed if name == KILLED else Run(make.run_folder(root, name))


def assert_close(found: Mapping[str, float], expected: Mapping[str, float], largest: float) -> None:
    """Assert that metrics differ by at most `largest`."""
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        assert math.isclose(found[name], value, rel_tol=largest, abs_tol=largest), (name, found[name], value)


def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_run(killed: Run) -> None:
    summary = killed.summary
    saved = summary.resumed_from_step
    assert saved is not None
    assert saved % make.STEPS_PER_EPOCH, "it was killed between two epochs"
    assert (summary.status, list(killed.history.index)) == ("FINISHED", [1, 2, 3])
    weights = make.weights_of(killed.folder)
    with np.load(STORED / f"{KILLED}_weights.npz") as expected:
        assert weights.keys() == {*expected.files}
        for name in expected.files:
            np.testing.assert_allclose(weights[name], expected[name], 0, SINGLE_PRECISION, err_msg=name)
    assert_close(make.test_metrics(killed.folder), use(KILLED).test, SINGLE_PRECISION)


def test_a_fork_trains_on(name: str, run: Run) -> None:
    fork = run_experiment([*make.fork_words(run.folder, name), "tracking=off"])
    assert list(fork.history.index) == [make.EPOCHS + 1]
    assert_close(make.last_epoch(fork.folder), use(name).fork, tolerance(name))


def test_an_evaluation_gives_the_same_metrics(name: str, run: Run) -> None:
    words = ("pipeline.export=null", "evaluate.baseline=false", "tracking=off")
    again = run_experiment(["from=evaluate", f"run={run.folder.name}", f"name={name}_again", *words])
    assert again.summary.stages["train"].status == "reused"
    assert_close(make.test_metrics(again.folder), make.test_metrics(run.folder), 1e-6)
    assert_close(make.test_metrics(again.folder), use(name).test, tolerance(name))


def test_the_exported_model_gives_the_same_predictions(name: str, run: Run, root: Path) -> None:
    def numbers(row: Mapping[str, Any]) -> dict[str, float]:
        return {**row.get("probabilities", {}), **{key: row[key] for key in ("score", "prediction") if key in row}}

    found, expected = make.predictions(run.folder, root / NEW[name]), use(name).answers
    for row, before in zip(found, expected, strict=True):
        assert row.keys() == before.keys()
        assert row["file"] == before["file"]
        assert row.get("class_name") == before.get("class_name") or name == HALF
        assert_close(numbers(row), numbers(before), tolerance(name))
