"""Nothing that a stage returns is dropped without a word: it is recorded, named or refused."""

import dataclasses
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from mlflow.utils.validation import _validate_metric_name

from pipeline.console import Console
from pipeline.planning.plan import PlannedStage
from pipeline.run.reporter import metric_name
from pipeline.run.runner import BoundStage, StageRunner
from pipeline.run_folder.summary import Summary
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from stages.results import Dataset, Exported, Model, Record, Strategy
from tests.stages.experiments import real_digits


class Kept(Tracker):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.numbers: dict[tuple[str, int], float] = {}
        self.files: list[tuple[Path, str]] = []
        self.datasets: list[Dataset] = []
        self.models: list[Exported] = []

    def params(self, values: Any) -> None:
        self.kept |= values

    def metrics(self, values: Any, step: int = 0) -> None:
        self.numbers |= {(name, step): value for name, value in values.items()}

    def artifact(self, path: Path, folder: str = "") -> None:
        self.files.append((path, folder))

    def dataset(self, dataset: Dataset) -> None:
        self.datasets.append(dataset)

    def model(self, exported: Exported) -> None:
        self.models.append(exported)


class Heard(Console):
    """Remembers what it warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.warned: list[str] = []

    def warn(self, line: str) -> None:
        self.warned.append(line)


def run(folder: Path, **stages: Callable[..., Any]) -> tuple[Kept, Heard, Summary]:
    """Runs stages of that name, each of which makes `<name>_result`."""
    tracker, console, summary = Kept(), Heard(), Summary(None, "RUNNING", "x", str(folder), {})
    made: list[str] = []
    bound = []
    for name, function in stages.items():
        inputs = tuple(one for one in made if one in function.__code__.co_varnames[: function.__code__.co_argcount])
        bound.append(BoundStage(PlannedStage(name, "x.y", "", inputs, f"{name}_result"), function, None))
        made.append(f"{name}_result")
    StageRunner(folder, folder, tracker, console, summary).run(bound)
    return tracker, console, summary


@dataclasses.dataclass
class WithRecord:
    record: Any
    error: float = 0.5


SCORE = {"mine/score": 0.25}

RESULTS: dict[str, tuple[Any, dict[str, float], dict[str, Any]]] = {
    "dict": ({"score": 0.25, "val/ece": 3}, {"mine/score": 0.25, "val/ece": 3.0}, {}),
    "numpy": ({"score": np.float32(0.25), "one": np.ones([1, 1])}, {**SCORE, "mine/one": 1.0}, {}),
    "tensor": ({"score": tf.constant(0.25)}, SCORE, {}),
    "variable": ({"score": tf.Variable([0.25])}, SCORE, {}),
    "record": (Record({"a": 1}, {"val/x": 2}), {"val/x": 2.0}, {"mine/a": 1}),
    "dataclass": (WithRecord(Record({"a/b": [1]}, {"val/x": 2})), {"val/x": 2.0}, {"a/b": [1]}),
    "none": (None, {}, {}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_a_stage_returns_is_recorded_and_handed_on(name: str, tmp_path: Path) -> None:
    result, metrics, params = RESULTS[name]
    seen = []

    def mine() -> Any:
        return result

    def later(mine_result: "Any | None") -> None:
        seen.append(mine_result)

    tracker, console, summary = run(tmp_path, mine=mine, later=later)
    assert seen[0] is result
    assert {key: v for (key, _), v in tracker.numbers.items() if not key.endswith("/seconds")} == metrics
    assert {key: v for key, v in summary.metrics.items() if not key.endswith("/seconds")} == metrics
    assert tracker.kept == params
    assert console.warned == []


@pytest.mark.parametrize(
    "result",
    [
        object(),
        0.25,
        "good",
        (0.9, Path("x")),
        {"score": "good"},
        {"record": Record()},
        np.zeros(3),
        WithRecord({"score": 0.25}),
    ],
    ids=lambda result: type(result).__name__,
)
def test_what_is_no_record_is_refused_as_an_error_of_the_stage(result: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected a dataclass with a Record as `record`, a Record, or"):
        run(tmp_path, mine=lambda: result)


@pytest.mark.parametrize("value", [None, np.zeros(3), "0.5", 10**400], ids=lambda value: type(value).__name__)
def test_a_metric_that_is_no_number_is_named(value: Any, tmp_path: Path) -> None:
    tracker, console, _ = run(tmp_path, mine=lambda reporter: reporter.metrics({"score": value}, 1))
    [line] = console.warned
    assert line.startswith("mine: the metric score is a ")
    assert ("score", 1) not in tracker.numbers


def test_numbers_of_every_kind_become_metrics(tmp_path: Path) -> None:
    values = {
        "bool": True,
        "numpy bool": np.bool_(True),
        "int": np.int8(3),
        "half": tf.constant(0.5, tf.bfloat16),
        "decimal": Decimal("0.25"),
        "a[0]": 1.5,
        "inf": math.inf,
        "nan": math.nan,
    }
    tracker, console, _ = run(tmp_path, mine=lambda reporter: reporter.metrics(values, 1))
    metrics = {name: value for (name, step), value in tracker.numbers.items() if step}
    assert math.isnan(metrics.pop("nan"))
    expected = {"bool": 1.0, "numpy bool": 1.0, "int": 3.0, "half": 0.5, "decimal": 0.25, "a_0_": 1.5, "inf": math.inf}
    assert metrics == expected
    assert not console.warned


@pytest.mark.parametrize(
    "name", ["a[0]", "/a", "a/", "a//b", "../a", "a/../b", ".", "", "é ü", "a\nb", "x" * 300, "a%b"]
)
def test_every_name_becomes_one_that_the_store_takes(name: str) -> None:
    clean = metric_name(name)
    _validate_metric_name(clean)
    assert 0 < len(clean) <= 250
    assert metric_name(clean) == clean


def test_files_may_be_given_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder, work = tmp_path / "run", tmp_path / "work"
    run_folder.mkdir()
    work.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (work / name).write_text(name)
    (run_folder / "d.txt").write_text("d")
    monkeypatch.chdir(work)
    record = Record(
        files={
            "text": str(work / "a.txt"),
            "path": work / "a.txt",
            "set": {str(work / "b.txt")},
            "generator": (path for path in (work / "a.txt", "b.txt")),
            "relative": "c.txt",
            "of the run": ["d.txt"],
            "gone": "nowhere.txt",
            "": "a.txt",
        }
    )
    assert record.files["text"] == work / "a.txt"
    tracker, _, _ = run(run_folder, mine=lambda: record)
    a, b, c = (work / name for name in ("a.txt", "b.txt", "c.txt"))
    assert tracker.files == [
        (a, "text"),
        (a, "path"),
        (b, "set"),
        (a, "generator"),
        (b, "generator"),
        (c, "relative"),
        (run_folder / "d.txt", "of the run"),
        (run_folder / "nowhere.txt", "gone"),  # which the store refuses, and the run lists at its end
        (a, ""),
    ]


@pytest.mark.parametrize(
    "given",
    [{"files": {"x": 5}}, {"files": {"x": [None]}}, {"files": "x"}, {"metrics": 0.5}, {"params": ["a"]}],
    ids=str,
)
def test_a_record_of_wrong_types_is_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"Record\.(files|metrics|params)") as refused:
        Record(**given)
    assert "\n" not in str(refused.value)


def test_a_record_that_is_handed_on_is_recorded_once(tmp_path: Path) -> None:
    record = Record({"a": 1}, {"data/size": 3})
    tracker, console, _ = run(tmp_path, load=lambda: WithRecord(record), denoise=lambda: WithRecord(record, 0.1))
    assert list(tracker.kept) == ["load/a"]
    assert console.warned == []


def test_results_without_a_record_are_recorded_by_their_type(tmp_path: Path) -> None:
    dataset, exported = real_digits(64), Exported(tmp_path, (8, 8, 1), ("a", "b"), 0.0)
    tracker, console, summary = run(
        tmp_path,
        strategy=lambda: Strategy(tf.distribute.get_strategy(), ("/cpu:0", "/cpu:1")),
        load=lambda: dataclasses.replace(dataset, record=Record()),
        model=lambda: Model(keras.Sequential(), dataset.task, "mixed_bfloat16"),
        export=lambda: exported,
    )
    assert (summary.replicas, summary.precision) == (2, "mixed_bfloat16")
    assert summary.facts["devices"] == ["/cpu:0", "/cpu:1"]
    assert summary.facts["data"] == {
        "classes": 10, "height": 8, "width": 8, "channels": 1,
        **{f"{name}_examples": len(split) for name, split in dataset.splits.items()},
    }  # fmt: skip
    assert summary.exported == {"saved_model": str(tmp_path)}
    assert [one.fingerprint for one in tracker.datasets] == [dataset.fingerprint]
    assert tracker.models == [exported]
    assert console.warned == []


def test_a_stage_summarizes_what_it_likes_and_is_called_on_exit_once(tmp_path: Path) -> None:
    calls: list[str] = []
    record = Record(summary={"tokens": 3, "place": Path("x")}, on_exit=lambda: calls.append("left"))

    def last(first_result: WithRecord) -> WithRecord:
        assert not calls
        return WithRecord(first_result.record)

    _, _, summary = run(tmp_path, first=lambda: WithRecord(record), last=last)
    assert calls == ["left"]
    assert Summary.read(summary.write(tmp_path).parent).facts == {"tokens": 3, "place": "x"}


def test_what_is_reported_while_a_stage_runs_is_held_to_the_same(tmp_path: Path) -> None:
    def mine(reporter: Any) -> None:
        for epoch in (1, 2):
            reporter.metrics({"a[0]": tf.constant(float(epoch)), "note": "good"}, epoch)

    tracker, console, _ = run(tmp_path, mine=mine)
    assert [tracker.numbers[("a_0_", step)] for step in (1, 2)] == [1.0, 2.0]
    assert len(console.warned) == 1  # once
