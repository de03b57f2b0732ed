"""Make tracked runs that are interrupted or finished, for the tests."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from pipeline.config.schemas import TrackingSettings
from pipeline.runs.journal import Journal
from pipeline.tracking.follower import followed_here
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError

LOCAL = TrackingSettings(kind="local")
EPOCHS = 6


def folder_of(outputs: Path, name: str = "run") -> Path:
    return outputs / "runs" / "tried" / name


class Tried(Tracker):
    """A tracker with a follower in a thread, which ends when the tracker is closed."""

    def __init__(
        self, spec: RunSpec, warn: Callable[[str], None] = print, tags: Mapping[str, str] | None = None
    ) -> None:
        self._end = ExitStack()
        self._end.enter_context(followed_here(spec.folder, Store(spec.settings, spec.outputs)))
        super().__init__(spec, warn)
        try:
            self.begin(tags or {})
        except UserError:
            self._end.close()
            raise

    def close(self, seconds: float | None = None) -> int:
        left = super().close(seconds)
        self._end.close()
        return left


def begin(
    outputs: Path, name: str = "run", warn: Callable[[str], None] = print, settings: TrackingSettings = LOCAL
) -> Tracker:
    """Begin or resume a run."""
    folder = folder_of(outputs, name)
    folder.mkdir(parents=True, exist_ok=True)
    return Tried(RunSpec(settings, outputs, folder, "tried", name), warn, {"note": "x"})


def record(tracker: Tracker, epochs: int) -> None:
    """Record all epochs of a training, as a new or a resumed run does."""
    tracker.params({f"p{index}": index for index in range(5)})
    for epoch in range(1, epochs + 1):
        tracker.metrics({"train/loss": 1 / epoch, "val/loss": 2 / epoch}, epoch)
    tracker.metrics({"load/seconds": 1.0})


def interrupted(outputs: Path) -> Path:
    """Return the folder of a run whose process died after EPOCHS epochs. The store has all of them."""
    tracker = begin(outputs)
    record(tracker, EPOCHS)
    assert tracker.close(30) == 0
    return folder_of(outputs)


def finish(outputs: Path, warn: Callable[[str], None] = print) -> None:
    """Resume the run and finish it, as the same command does."""
    tracker = begin(outputs, warn=warn)
    record(tracker, EPOCHS + 2)
    tracker.status("FINISHED")
    assert tracker.close(30) == 0


def client(outputs: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")


def only_run(outputs: Path) -> Run:
    [own] = client(outputs).search_experiments(filter_string="name = 'tried'")
    [run] = client(outputs).search_runs([own.experiment_id])
    return run


def steps(outputs: Path, metric: str) -> list[int]:
    """Return the steps in the history of `metric` of the only run."""
    return [point.step for point in client(outputs).get_metric_history(only_run(outputs).info.run_id, metric)]


def assert_complete(outputs: Path, epochs: int = EPOCHS + 2, damaged: int = 0) -> Run:
    run = only_run(outputs)
    assert run.info.status == "FINISHED"
    for name, over in (("train/loss", 1), ("val/loss", 2)):
        points = client(outputs).get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(step, over / step) for step in range(1, epochs + 1)]
    assert steps(outputs, "load/seconds") == [0]
    assert run.data.params == {f"p{index}": str(index) for index in range(5)}
    journal = Journal(folder_of(outputs))
    assert journal.is_closed
    assert (journal.run_id, journal.damaged) == (run.info.run_id, damaged)
    return run
