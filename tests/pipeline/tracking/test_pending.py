"""A run that has ended is never trained again. A run whose files cannot be read is reported and skipped."""

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.api import open_run
from pipeline.commands import sync
from pipeline.console import Console
from pipeline.decide.decision import New, decide
from pipeline.decide.job import Job
from pipeline.exit_codes import FAILED
from pipeline.launch.run import run_job
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import Entry, Journal
from pipeline.runs.summary import NAME, Summary
from pipeline.system.signals import until
from pipeline.tracking.mlflow_run import MlflowRun
from pipeline.tracking.pending import end_lost
from pipeline.tracking.stored_run import Delivery
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from tests.chaos.faults import assert_whole_run
from tests.pipeline.experiments import BARE, SMALL, Patch, Printed, experiment, only_folder, only_run, ran, write_run
from tests.pipeline.tracking import journals
from tests.pipeline.tracking.journals import interrupted

pytestmark = pytest.mark.slow

EPOCHS = 2
GIVEN = (f"train.epochs={EPOCHS}", "model.network.filters=[4,8]")


class Died(BaseException):
    """Raised in place of a kill."""


def job(outputs: Path, *more: str) -> Job:
    return Job(experiment(*GIVEN, *more, outputs=outputs))


@pytest.fixture(scope="module")
def died(module_outputs: Path) -> Path:
    """Return the outputs of a run whose process died after it had finished. The store lacks its model and end."""
    real, reached = MlflowRun.send, threading.Event()

    def send(self: MlflowRun, entry: Entry) -> Delivery:
        if entry.call == "model":
            reached.set()
            raise SystemExit  # the follower ends, too
        return real(self, entry)

    def die(*given: object) -> int:
        assert reached.wait(60)
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MlflowRun, "send", send)
        patch.setattr(Tracker, "flush", die)
        with pytest.raises(Died):
            run_job(job(module_outputs), Console())
    return module_outputs


def copied(died: Path, tmp_path: Path) -> Path:
    return shutil.copytree(died, tmp_path / "outputs")


def test_the_same_command_closes_a_finished_run_untrained(died: Path, tmp_path: Path, capsys: Printed) -> None:
    outputs = copied(died, tmp_path)
    assert (Summary.read(only_folder(outputs)).status, only_run(outputs)[1].info.status) == ("FINISHED", "RUNNING")
    assert run_job(job(outputs), Console()) == 0
    printed = capsys.readouterr().out
    assert re.search(r"(?s)has already finished.*run +\w+  FINISHED", printed)
    assert "\nepoch" not in printed
    assert_whole_run(outputs)
    assert decide(job(outputs)).start == New()  # and the next one is a new run


@pytest.mark.parametrize("how", ["untracked", "sent meanwhile"])
def test_it_is_reported_once_and_not_trained_again_whatever_the_store_has(
    how: str, died: Path, tmp_path: Path, capsys: Printed
) -> None:
    """The follower continues after the run's process, and may have sent everything before the next command."""
    outputs = copied(died, tmp_path)
    folder = only_folder(outputs)
    again = job(outputs, *(["tracking=off"] if how == "untracked" else []))

    def is_sent() -> bool:
        end_lost(RunFolder(folder), again.experiment, FAILED, Console())
        return Journal(folder).is_closed

    if how == "sent meanwhile":
        assert until(is_sent, 60)  # one call waits for a busy machine for four seconds
    assert run_job(again, Console()) == 0
    printed = capsys.readouterr().out
    assert re.search(r"(?s)has already finished; nothing to train.*FINISHED", " ".join(printed.split()))
    assert "\nepoch" not in printed
    assert only_folder(outputs) == folder
    assert decide(again).start == New()  # and the next one is a new run


@pytest.mark.parametrize("how", ["resume", "other code"])
def test_a_finished_run_that_is_not_closed_is_recognized(
    how: str, died: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    outputs = copied(died, tmp_path)
    folder = only_folder(outputs)
    if how == "resume":
        assert decide(job(outputs, f"resume={folder.name}")).folder == RunFolder(folder)
    else:
        monkeypatch.setattr("pipeline.decide.resume.sources", lambda experiment: Sources({"a.py": "other"}))
        found = decide(job(outputs))
        assert found.start == New()
        found.notes.show(Console())
        assert f"python -m pipeline sync {folder}" in capsys.readouterr().out


@pytest.mark.parametrize("lost", ["tracking.sent", "mlflow.db"])
def test_sync_closes_a_finished_run_from_its_remaining_files(
    lost: str, died: Path, tmp_path: Path, migrated_store: Path
) -> None:
    outputs = copied(died, tmp_path)
    folder = only_folder(outputs)
    place = outputs if lost == "mlflow.db" else folder
    (place / lost).write_bytes(bytes(100)) if lost != "mlflow.db" else shutil.copy(migrated_store, place / lost)
    assert sync.main([f"--outputs={outputs}", "~nobody_at_all/x"]) == 1
    assert sync.main([f"--outputs={outputs}"]) == 0
    summary = Summary.read(folder)
    client, run = only_run(outputs)
    assert (run.info.status, run.info.run_id, summary.status) == ("FINISHED", summary.run_id, "FINISHED")
    for name in ("train/loss", "val/loss"):
        assert [point.step for point in client.get_metric_history(run.info.run_id, name)] == list(range(1, EPOCHS + 1))
    assert len(client.get_metric_history(run.info.run_id, "test/accuracy")) == 1
    assert Journal(folder).is_closed


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a list": lambda path: path.write_text("[]"),
    "an unknown status": lambda path: path.write_text(path.read_text().replace('"KILLED"', '"KILLEF"')),
}


def killed_run(outputs: Path) -> Path:
    """Return the folder of a run that was stopped, made without training."""
    made = experiment(*GIVEN, outputs=outputs)
    folder = outputs / "runs" / made.name / "20260101-000000-aaaaaaaa"
    own, code = identity(made), sources(made).digest
    return write_run(folder, "KILLED", overrides=list(GIVEN), identity=own, code=code)


def test_a_run_that_was_not_tracked_has_its_history_and_is_sent_on_request(outputs: Path) -> None:
    run = open_run(ran(outputs, *SMALL, *BARE, "train.epochs=2", "tracking=off").folder)
    assert list(run.history.index) == [1, 2]
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert run.summary.run_id is None
    assert sync.main([str(run.folder), f"--outputs={outputs}"]) == 0
    _, sent = only_run(outputs)
    assert (sent.info.run_id, sent.info.status) == (run.summary.run_id, "FINISHED")
    assert sent.data.metrics["val/loss"] == run.history["val/loss"][2]


def test_sync_ends_what_died_together_with_its_follower(outputs: Path) -> None:
    """As in a crash of the machine."""
    run = interrupted(outputs)
    Summary(journals.only_run(outputs).info.run_id, "RUNNING", "tried", run, {}).write(run)
    assert sync.main([f"--outputs={outputs}"]) == 0
    ended = journals.only_run(outputs)
    assert (ended.info.status, ended.data.tags["error"]) == ("FAILED", "its process was killed or did not respond")
    assert Summary.read(run).status == "FAILED"


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_run_that_cannot_be_read_is_reported_and_skipped(kind: str, outputs: Path, capsys: Printed) -> None:
    folder = killed_run(outputs)
    assert decide(job(outputs)).folder == RunFolder(folder)
    DAMAGE[kind](folder / NAME)
    before = (folder / NAME).read_bytes()
    found = decide(job(outputs))
    assert found.start == New()
    found.notes.show(Console())
    assert "summary.json cannot be read, so this run is skipped" in " ".join(capsys.readouterr().out.split())
    for name in (folder, folder.name):
        with pytest.raises(UserError, match=r"summary\.json cannot be read"):
            decide(job(outputs, f"resume={name}"))
    assert (folder / NAME).read_bytes() == before


def test_metrics_that_are_not_finite_are_read_back(tmp_path: Path) -> None:
    Summary(None, "KILLED", "x", tmp_path, {}, metrics={"train/loss": float("nan")}).write(tmp_path)
    assert json.loads((tmp_path / NAME).read_text())["metrics"] == {"train/loss": None}
    assert Summary.read(tmp_path).metrics["train/loss"] != Summary.read(tmp_path).metrics["train/loss"]
