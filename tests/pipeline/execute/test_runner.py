"""Results of stages are recorded or refused with a reason, never dropped silently. Errors are printed in one line."""

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from mlflow.utils.validation import _validate_metric_name

from pipeline.console import Console
from pipeline.decide.plan import PlannedStage
from pipeline.execute.link import Turn
from pipeline.execute.reporter import RunReporter
from pipeline.execute.stages import BoundStage, StageRunner
from pipeline.runs.facts import DataFacts, Facts
from pipeline.runs.summary import Summary
from pipeline.tracking.params import metric_name
from pipeline.tracking.tracker import Tracker
from stages.declared import declare
from stages.errors import UserError
from stages.evaluate import check
from stages.exporters import fresh_process
from stages.reporter import Reporter
from stages.results import Dataset, Exported, Model, Record, Strategy
from stages.settings.results import EvaluateSettings
from tests.stages.experiments import real_digits


class Kept(Tracker):
    """A tracker that keeps its records in memory."""

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
    """A console that keeps its warnings in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.warned: list[str] = []

    def warn(self, line: str) -> None:
        self.warned.append(line)


class Run:
    """A run of stages. Each stage makes `<name>_result`."""

    def __init__(self, folder: Path, settings: Any = None, turn: Turn | None = None, target: str = "x.y") -> None:
        self.tracker, self.console = Kept(), Heard()
        self.summary = Summary(None, "RUNNING", "x", folder, {})
        self.settings, self.target = settings, target
        reporter = RunReporter(self.tracker, self.console, self.summary, turn=turn or Turn())
        self.runner = StageRunner(folder, folder, reporter)

    def __call__(self, **stages: Callable[..., Any]) -> "Run":
        made: list[str] = []
        bound = []
        for name, function in stages.items():
            code = getattr(function, "__code__", None)
            inputs = tuple(one for one in made if code and one in code.co_varnames[: code.co_argcount])
            planned = PlannedStage(name, self.target, "", inputs, f"{name}_result")
            bound.append(BoundStage(planned, function, self.settings))
            made.append(f"{name}_result")
        self.runner.run(bound)
        return self


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@dataclasses.dataclass
class WithRecord:
    record: Any
    error: float = 0.5


RESULTS: dict[str, tuple[Any, dict[str, float], dict[str, Any]]] = {
    "dict": ({"score": np.float32(0.25), "val/ece": tf.Variable([3])}, {"mine/score": 0.25, "val/ece": 3.0}, {}),
    "record": (Record({"a": 1}, {"val/x": 2}), {"val/x": 2.0}, {"mine/a": 1}),
    "dataclass": (WithRecord(Record({"a/b": [1]}, {"val/x": 2})), {"val/x": 2.0}, {"a/b": [1]}),
    "none": (None, {}, {}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_result_of_a_stage_is_recorded_and_passed_on(name: str, run: Run) -> None:
    result, metrics, params = RESULTS[name]
    seen = []

    def later(mine_result: "Any | None") -> None:
        seen.append(mine_result)

    run(mine=lambda: result, later=later)
    assert seen[0] is result
    assert {key: v for (key, _), v in run.tracker.numbers.items() if not key.endswith("/seconds")} == metrics
    assert {key: v for key, v in run.summary.metrics.items() if not key.endswith("/seconds")} == metrics
    assert run.tracker.kept == params
    assert run.console.warned == []


@pytest.mark.parametrize("result", [0.25, (0.9, Path("x")), {"score": "good"}, WithRecord({"score": 0.25})], ids=repr)
def test_a_result_that_cannot_be_recorded_is_an_error_of_the_stage(result: Any, run: Run) -> None:
    with pytest.raises(UserError, match="Expected a Record, a dataclass whose field `record` is a Record, or"):
        run(mine=lambda: result)


def test_a_stage_gets_the_latest_result_of_a_name(run: Run) -> None:
    """`load`, `normalize` and `augment` each return a `dataset`."""
    seen: list[float] = []
    first: list[Callable[..., Any]] = [lambda: WithRecord(Record(), 1.0), lambda made: WithRecord(Record(), 2.0)]
    functions = [*first, lambda made: seen.append(made.error)]
    stages = [PlannedStage(str(place), "x.y", "", ("made",) * bool(place), "made") for place in range(3)]
    run.runner.run([BoundStage(*pair, None) for pair in zip(stages, functions, strict=True)])
    assert seen == [2.0]


def test_numbers_of_every_kind_become_metrics_and_others_are_named_once(run: Run) -> None:
    values = {"numpy bool": np.bool_(True), "int": np.int8(3), "half": tf.constant(0.5, tf.bfloat16)}
    values |= {"decimal": Decimal("0.25"), "a[0]": 1.5, "inf": math.inf, "nan": math.nan}
    others = {"none": None, "array": np.zeros(3), "text": "0.5", "huge": 10**400}

    def mine(reporter: Any) -> None:
        for epoch in (1, 2):
            reporter.metrics(values | others, epoch)

    run(mine=mine)
    for epoch in (1, 2):
        metrics = {name: value for (name, step), value in run.tracker.numbers.items() if step == epoch}
        assert math.isnan(metrics.pop("nan"))
        expected = {"numpy bool": 1.0, "int": 3.0, "half": 0.5, "decimal": 0.25, "a_0_": 1.5, "inf": math.inf}
        assert metrics == expected
    assert [line.split(" is a ")[0] for line in run.console.warned] == [f"mine: the metric {name}" for name in others]


@pytest.mark.parametrize("name", ["a[0]", "/a//b", "../a", ".", "", "é ü", "a\nb", "x" * 300, "a%b"])
def test_every_name_becomes_one_that_the_store_accepts(name: str) -> None:
    clean = metric_name(name)
    _validate_metric_name(clean)
    assert 0 < len(clean) <= 250
    assert metric_name(clean) == clean


def test_files_may_be_given_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder, work = tmp_path / "run", tmp_path / "work"
    run_folder.mkdir()
    work.mkdir()
    a, b = work / "a.txt", work / "b.txt"
    for path in (a, b, run_folder / "d.txt"):
        path.write_text("x")
    monkeypatch.chdir(work)
    given = {"text": str(a), "set": {str(b)}, "generator": (path for path in (a, "b.txt")), "of the run": ["d.txt"]}
    record = Record(files={**given, "gone": "nowhere.txt", "": "a.txt"})
    assert Run(run_folder)(mine=lambda: record).tracker.files == [
        (a, "text"), (b, "set"), (a, "generator"), (b, "generator"), (run_folder / "d.txt", "of the run"),
        (run_folder / "nowhere.txt", "gone"), (a, ""),  # the store rejects a missing file, and the run lists it
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["", ".", Path()])
def test_the_working_directory_is_neither_recorded_nor_redacted(
    path: str | Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-token-of-mine")
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("a-token-of-mine")
    with pytest.raises(UserError, match="contains an empty path"):
        run(mine=lambda: Record(files={"plots": path}))
    assert Path("mine.txt").read_text() == "a-token-of-mine"


def test_names_may_be_numbers(run: Run) -> None:
    """Names of classes often are."""
    run(mine=lambda: Record({1: 2}, {0: 0.5}))  # type: ignore[dict-item]
    assert (run.tracker.kept, run.summary.metrics["0"]) == ({"mine/1": 2}, 0.5)


def test_a_record_that_is_passed_on_is_recorded_once(run: Run) -> None:
    record = Record({"a": 1}, {"data/size": 3})
    run(load=lambda: WithRecord(record), denoise=lambda: WithRecord(record, 0.1))
    assert list(run.tracker.kept) == ["load/a"]


def test_results_without_a_record_are_recorded_by_their_type(run: Run, tmp_path: Path) -> None:
    dataset, exported = real_digits(64), Exported(tmp_path, (8, 8, 1), ("a", "b"), 0.0)
    run(
        strategy=lambda: Strategy(tf.distribute.get_strategy(), ("/cpu:0", "/cpu:1")),
        load=lambda: dataclasses.replace(dataset, record=Record()),
        model=lambda: Model(keras.Sequential(), dataset.task, "mixed_bfloat16"),
        export=lambda: exported,
    )
    assert (run.summary.replicas, run.summary.precision) == (2, "mixed_bfloat16")
    assert run.summary.facts.others["devices"] == ["/cpu:0", "/cpu:1"]
    sizes = {name: len(split) for name, split in dataset.splits.items()}
    assert run.summary.facts.data == DataFacts(
        train_examples=sizes["train"],
        val_examples=sizes["val"],
        test_examples=sizes["test"],
        classes=10,
        height=8,
        width=8,
        channels=1,
    )
    assert run.summary.exported == {"saved_model": str(tmp_path)}
    assert [one.fingerprint for one in run.tracker.datasets] == [dataset.fingerprint]
    assert run.tracker.models == [exported]


def test_a_stage_adds_facts_to_the_summary_and_is_called_on_exit_once(run: Run, tmp_path: Path) -> None:
    calls: list[str] = []
    record = Record(summary={"tokens": 3, "place": Path("x")}, on_exit=lambda: calls.append("left"))

    def last(first_result: WithRecord) -> WithRecord:
        assert not calls
        return WithRecord(first_result.record)

    run(first=lambda: WithRecord(record), last=last)
    assert calls == ["left"]
    assert Summary.read(run.summary.write(tmp_path).parent).facts == Facts(others={"tokens": 3, "place": "x"})


@pytest.mark.parametrize("setting", [{"importance": True}, {"slices": ["kind"]}], ids=str)
def test_settings_that_do_not_fit_the_data_are_refused_as_soon_as_it_is_loaded(setting: Any, tmp_path: Path) -> None:
    def evaluation() -> None:
        pass

    declare(evaluation, check=lambda settings, load_result: check(settings, load_result))
    run = Run(tmp_path, EvaluateSettings(**setting))
    with pytest.raises(UserError, match=rf"evaluate\.{next(iter(setting))}="):
        run(load=lambda: real_digits(64), evaluate=evaluation)
    assert run.summary.failed_stage == "load"


def lose_a_worker() -> None:
    raise tf.errors.DeadlineExceededError(None, None, "Collective ops is aborted by: Deadline Exceeded\nRPC: Heartbeat")


def test_a_worker_that_is_lost_anywhere_in_a_stage_is_one_line(run: Run) -> None:
    with pytest.raises(UserError, match=r"^another worker of the cluster was lost \(Deadline Exceeded\)"):
        run(own=lose_a_worker)
    assert run.summary.failed_stage == "own"


def test_a_run_that_fails_leaves_no_process(run: Run) -> None:
    """In a notebook, the process continues after the run."""
    started: list[Any] = []

    def fail() -> None:
        fresh_process.prestart()
        started.append(fresh_process._prestarted)
        raise UserError("it fails", "that it does not")

    declare(fail, clean_up=fresh_process.end)
    with pytest.raises(UserError, match="it fails"):
        run(own=fail)
    assert started[0].returncode is not None


def test_a_job_of_a_sweep_waits_for_its_turn_to_train(tmp_path: Path) -> None:
    """It prepares its data before its turn, and the next job begins as soon as it has trained."""
    events: list[str] = []

    class Noted(Turn):
        def wait(self) -> None:
            if not self.has_come:
                events.append("wait")
            self.has_come = True

        def has_trained(self) -> None:
            events.append("next")

    names = ("normalize", "train", "evaluate")
    Run(tmp_path, turn=Noted(Pipe()[0]))(**{name: functools.partial(events.append, name) for name in names})
    assert events == ["normalize", "wait", "train", "next", "evaluate"]


def test_the_first_progress_of_a_training_waits_for_its_turn_which_its_time_excludes(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    threading.Timer(0.5, ours.send, (1.0,)).start()
    came: dict[str, float] = {}

    def show(name: str, reporter: Reporter) -> None:
        began = time.monotonic()
        for _ in range(2):
            reporter.progress(1, 2, "a step")
        came[name] = time.monotonic() - began

    stages = {name: functools.partial(show, name) for name in ("inspect", "train")}
    run = Run(tmp_path, turn=Turn(theirs), target="stages.train.train")(**stages)
    assert came["inspect"] < 0.3 < came["train"]
    assert run.summary.stages["train"].seconds < 0.4


def test_float32_is_computed_in_full_unless_the_stage_model_decides_otherwise(run: Run) -> None:
    """TensorFlow's default is TF32. What a stage sets applies to all stages after it, until the run ends."""
    config = tf.config.experimental
    seen: dict[str, bool] = {}

    def see(name: str, chosen: bool | None = None) -> None:
        seen[name] = config.tensor_float_32_execution_enabled()
        if chosen is not None:
            config.enable_tensor_float_32_execution(chosen)

    def fail() -> None:
        raise UserError("it fails", "that it does not")

    before = config.tensor_float_32_execution_enabled()
    try:
        for of_process in (True, False):
            config.enable_tensor_float_32_execution(of_process)
            run(early=lambda: see("early"), model=lambda: see("model", True), train=lambda: see("train"))
            assert seen == {"early": False, "model": False, "train": True}
            assert config.tensor_float_32_execution_enabled() == of_process
            with pytest.raises(UserError):
                run(model=functools.partial(see, "model", not of_process), train=fail)
            assert config.tensor_float_32_execution_enabled() == of_process
    finally:
        config.enable_tensor_float_32_execution(before)


def test_slow_work_starts_when_its_inputs_exist_and_ends_with_the_run(tmp_path: Path) -> None:
    events: list[str] = []

    def export(train_result: object) -> None:
        events.append("export")

    declare(export, start_early=lambda settings: events.append("start"), clean_up=lambda: events.append("end"))
    note = {name: functools.partial(events.append, name) for name in ("load", "train", "evaluate")}
    Run(tmp_path)(**note, export=export)
    assert events == ["load", "train", "start", "evaluate", "start", "export", "end"]
