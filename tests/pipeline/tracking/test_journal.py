"""A journal may be damaged, and a store may be lost: one run comes out, complete, with nothing twice."""

import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from pipeline import sync
from pipeline.config.schemas import TrackingSettings
from pipeline.run.settle import settings_for
from pipeline.system.sealed import seal
from pipeline.tracking.journal import NAME, SENT, Journal
from pipeline.tracking.journaled import JournaledTracker
from pipeline.tracking.mlflow_run import MlflowRun
from pipeline.tracking.spec import RunSpec, open_tracker
from pipeline.tracking.stored_run import StoredRun
from pipeline.tracking.tracker import Patience
from stages.errors import UserError

pytestmark = pytest.mark.slow

LOCAL = TrackingSettings(kind="local")
EPOCHS = 6


def begin(
    outputs: Path, name: str = "run", warn: Callable[[str], None] = print, settings: TrackingSettings = LOCAL
) -> JournaledTracker:
    folder = outputs / "runs" / "tried" / name
    folder.mkdir(parents=True, exist_ok=True)
    tracker = open_tracker(RunSpec(settings, outputs, folder, "tried", name, tags={"note": "x"}), warn)
    assert isinstance(tracker, JournaledTracker)
    return tracker


def record(tracker: JournaledTracker, epochs: int) -> None:
    """Records what a training does that was begun, or resumed: all of its epochs."""
    tracker.params({f"p{index}": index for index in range(5)})
    for epoch in range(1, epochs + 1):
        tracker.metrics({"train/loss": 1 / epoch, "val/loss": 2 / epoch}, epoch)
    tracker.metrics({"load/seconds": 1.0})


def interrupted(outputs: Path) -> Path:
    """Returns the folder of a run whose process has died after EPOCHS epochs, all of which the store has."""
    tracker = begin(outputs)
    record(tracker, EPOCHS)
    assert tracker.close(30) == 0
    return outputs / "runs" / "tried" / "run"


def finish(outputs: Path, warn: Callable[[str], None] = print) -> None:
    """Does what the same command does: resumes the run, and brings it to its end."""
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


def assert_complete(outputs: Path, epochs: int = EPOCHS + 2) -> Run:
    run = only_run(outputs)
    assert run.info.status == "FINISHED"
    for name, over in (("train/loss", 1), ("val/loss", 2)):
        points = client(outputs).get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(step, over / step) for step in range(1, epochs + 1)]
    assert len(client(outputs).get_metric_history(run.info.run_id, "load/seconds")) == 1
    assert run.data.params == {f"p{index}": str(index) for index in range(5)}
    journal = Journal(outputs / "runs" / "tried" / "run")
    assert journal.is_closed
    assert (journal.run_id, journal.damaged) == (run.info.run_id, 0)
    return run


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flipped(path: Path, seed: int) -> None:
    """Changes thirty bytes somewhere."""
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(30):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def each(change: Callable[[Path], object], folder: Path) -> None:
    """Damages the journal and the count of what was sent."""
    for name in (NAME, SENT):
        change(folder / name)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "none": lambda folder: None,
    "the last line cut": lambda folder: cut(folder / NAME, (folder / NAME).stat().st_size - 9),
    "the last line gone": lambda folder: lines(folder / NAME, lambda all_: all_[:-1]),
    "cut in half": lambda folder: cut(folder / NAME, (folder / NAME).stat().st_size // 2),
    "empty": lambda folder: cut(folder / NAME, 0),
    "deleted": lambda folder: (folder / NAME).unlink(),
    "deleted with its count": lambda folder: each(Path.unlink, folder),
    "the first line gone": lambda folder: lines(folder / NAME, lambda all_: all_[1:]),
    "garbage in the middle": lambda folder: lines(folder / NAME, lambda all_: [*all_[:3], b"\xff{]\n", *all_[3:]]),
    "a line of other JSON": lambda folder: lines(folder / NAME, lambda all_: [b'[1]\n{"call": 1}\n', *all_]),
    "NULs at the end": lambda folder: (folder / NAME).write_bytes((folder / NAME).read_bytes() + bytes(4096)),
    "NULs within": lambda folder: (folder / NAME).write_bytes((folder / NAME).read_bytes()[:700] + bytes(900)),
    "NULs for the end of a line": lambda folder: lines(
        folder / NAME, lambda all_: [*all_[:4], all_[4][:-1], bytes(900)]
    ),
    "all lines twice": lambda folder: lines(folder / NAME, lambda all_: all_ + all_),
    "lines in another order": lambda folder: lines(folder / NAME, lambda all_: all_[::-1]),
    "another encoding": lambda folder: (folder / NAME).write_text((folder / NAME).read_text(), "utf-16"),
    "Windows line ends": lambda folder: lines(folder / NAME, lambda all_: [line[:-1] + b"\r\n" for line in all_]),
    "a huge line": lambda folder: (folder / NAME).write_bytes(b"x" * 3_000_000 + (folder / NAME).read_bytes()),
    "flipped bits": lambda folder: flipped(folder / NAME, 1),
    "flipped bits in both": lambda folder: each(lambda path: flipped(path, 2), folder),
    "no count": lambda folder: (folder / SENT).unlink(),
    "a negative count": lambda folder: (folder / SENT).write_text("-7"),
    "a count of garbage": lambda folder: (folder / SENT).write_bytes(b"\0\xff[["),
    "too high a count": lambda folder: (folder / SENT).write_text("9999"),
    "an empty count": lambda folder: cut(folder / SENT, 0),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_run_with_a_damaged_journal_ends_complete_with_nothing_twice(kind: str, outputs: Path) -> None:
    folder = interrupted(outputs)
    before = only_run(outputs).info.run_id
    DAMAGE[kind](folder)
    said: list[str] = []
    finish(outputs, said.append)
    assert assert_complete(outputs).info.run_id == before
    skipped = [line for line in said if "damaged" in line]
    assert len(skipped) <= 1
    if "garbage in" in kind:
        assert "1 damaged or missing lines of" in skipped[0]


def test_a_journal_that_is_deleted_while_the_run_goes_on_is_written_again(outputs: Path) -> None:
    tracker = begin(outputs)
    record(tracker, EPOCHS)
    folder = outputs / "runs" / "tried" / "run"
    (folder / NAME).unlink()
    (folder / SENT).unlink(missing_ok=True)
    record(tracker, EPOCHS + 2)
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert_complete(outputs)
    assert not Journal(folder).refused


def test_every_cut_of_a_journal_is_survived(outputs: Path) -> None:
    """At each byte of its last lines, and every hundredth of the others."""
    folder = interrupted(outputs)
    whole = (folder / NAME).read_bytes()
    count = len(Journal(folder).entries)
    for size in [*range(0, len(whole), 100), *range(len(whole) - 150, len(whole))]:
        cut(folder / NAME, 0)
        (folder / NAME).write_bytes(whole[:size])
        journal = Journal(folder)
        ends = (whole[:size] + b"\n" * (whole[size : size + 1] == b"\n")).count(b"\n")  # whole without its end, too
        assert len(journal.entries) == max(ends - 1, 0)
        assert journal.trusted == (len(journal.entries) == count)


def test_sync_mends_a_damaged_journal(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run that has ended; nothing is sent twice, and a second time there is nothing to do."""
    interrupted(outputs)
    finish(outputs)
    folder = outputs / "runs" / "tried" / "run"
    flipped(folder / NAME, 3)
    (folder / SENT).unlink()
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert_complete(outputs)
    assert "Traceback" not in capsys.readouterr().err
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert "sent" not in capsys.readouterr().out.replace("nothing is left to send", "")


def delete_store(outputs: Path, empty: Path) -> None:
    (outputs / "mlflow.db").unlink()


def replace_store(outputs: Path, empty: Path) -> None:
    shutil.copy(empty, outputs / "new.db")
    (outputs / "new.db").replace(outputs / "mlflow.db")


def overwrite_store(outputs: Path, empty: Path) -> None:
    shutil.copyfile(empty, outputs / "mlflow.db")


def truncate_store(outputs: Path, empty: Path) -> None:
    cut(outputs / "mlflow.db", 0)


def delete_run(outputs: Path, empty: Path) -> None:
    client(outputs).delete_run(only_run(outputs).info.run_id)


def delete_experiment(outputs: Path, empty: Path) -> None:
    client(outputs).delete_experiment(only_run(outputs).info.experiment_id)


LOSSES = [delete_store, replace_store, overwrite_store, truncate_store, delete_run, delete_experiment]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_store_that_is_lost_while_a_run_goes_on_has_all_of_it(
    lose: Callable[[Path, Path], None], outputs: Path, migrated_store: Path
) -> None:
    tracker = begin(outputs)
    record(tracker, EPOCHS)
    assert tracker.flush(Patience(30)) == 0
    before = tracker.run_id
    lose(outputs, migrated_store)
    record(tracker, EPOCHS + 2)
    tracker.status("FINISHED")
    assert tracker.close(60) == 0
    run = assert_complete(outputs)
    assert run.info.run_id == tracker.run_id
    if lose is not delete_experiment:  # it is restored, and its runs with it
        assert run.data.tags["replaces_run"] == before


@pytest.mark.parametrize("lose", LOSSES)
def test_a_store_that_is_lost_between_two_commands_has_all_of_the_run(
    lose: Callable[[Path, Path], None], outputs: Path, migrated_store: Path
) -> None:
    interrupted(outputs)
    lose(outputs, migrated_store)
    finish(outputs)
    assert_complete(outputs)


@pytest.mark.parametrize("lose", [delete_store, replace_store, overwrite_store])
def test_sync_fills_a_store_that_was_lost_after_the_end(
    lose: Callable[[Path, Path], None], outputs: Path, migrated_store: Path
) -> None:
    interrupted(outputs)
    finish(outputs)
    lose(outputs, migrated_store)
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert_complete(outputs)


def test_a_run_that_was_deleted_after_its_end_stays_deleted_until_it_is_named(
    outputs: Path, migrated_store: Path
) -> None:
    interrupted(outputs)
    finish(outputs)
    delete_run(outputs, migrated_store)
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert not client(outputs).search_runs([client(outputs).search_experiments()[0].experiment_id])
    assert sync.main([str(outputs / "runs" / "tried" / "run")]) == 0
    assert_complete(outputs)


@pytest.mark.parametrize("moment", ["while it goes on", "between two commands", "after its end"])
def test_an_older_backup_of_the_store_gets_what_it_lacks(moment: str, outputs: Path) -> None:
    tracker = begin(outputs)
    record(tracker, 2)
    assert tracker.flush(Patience(30)) == 0
    shutil.copy(outputs / "mlflow.db", outputs / "backup.db")
    record(tracker, EPOCHS)
    assert tracker.flush(Patience(30)) == 0
    if moment == "while it goes on":
        (outputs / "backup.db").replace(outputs / "mlflow.db")
        record(tracker, EPOCHS + 2)
        tracker.status("FINISHED")
        assert tracker.close(30) == 0
    elif moment == "between two commands":
        tracker.close(30)
        shutil.copyfile(outputs / "backup.db", outputs / "mlflow.db")
        finish(outputs)
    else:
        tracker.close(30)
        finish(outputs)
        shutil.copyfile(outputs / "backup.db", outputs / "mlflow.db")
        assert sync.main([f"--outputs={outputs}"]) == 0
    assert assert_complete(outputs).info.run_id == tracker.run_id


def test_outputs_that_were_moved_are_all_in_the_new_place(outputs: Path) -> None:
    folder = interrupted(outputs)
    (folder / "plot.png").write_bytes(b"a")
    tracker = begin(outputs)
    tracker.artifact(folder / "plot.png")
    tracker.close(30)
    moved = outputs.with_name("moved")
    outputs.rename(moved)
    finish(moved)
    (moved / "runs" / "tried" / "run" / "more.png").write_bytes(b"b")
    tracker = begin(moved)
    tracker.artifact(moved / "runs" / "tried" / "run" / "more.png")
    tracker.status("FINISHED")
    tracker.close(30)
    run = assert_complete(moved)
    assert {entry.path for entry in client(moved).list_artifacts(run.info.run_id)} == {"plot.png", "more.png"}
    assert not outputs.exists()


def test_what_the_store_refuses_is_listed_and_takes_nothing_with_it(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bad name of a batch does not lose the others; what is refused is told again at the end, and noted."""
    tracker = begin(outputs)
    tracker._add("metrics", values={"good": 1.0, "bad\nname": 2.0, "also good": 3.0}, step=1, time=1)
    tracker.artifact(outputs / "there_is_none.png")
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert only_run(outputs).data.metrics == {"good": 1.0, "also good": 3.0}
    last = capsys.readouterr().out.splitlines()[-1]
    assert "refused by the store for good" in last
    assert "bad\\nname" in last
    assert "there_is_none.png" in last
    assert "also good" not in last
    journal = Journal(outputs / "runs" / "tried" / "run")
    assert journal.is_closed
    assert len(journal.refused) == 2


def slow(run: StoredRun, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every request of `run` take so long."""
    assert isinstance(run, MlflowRun)
    real = run._client._client

    class Slow:
        def __getattr__(self, name: str) -> Callable[..., object]:
            def call(*args: object, **given: object) -> object:
                time.sleep(seconds)
                return getattr(real, name)(*args, **given)

            return call

    monkeypatch.setattr(run._client, "_client", Slow())


def test_a_slow_store_that_answers_is_waited_for(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience counts from the last answer, not from the end; there is a limit, and a signal is heard."""
    tracker = begin(outputs)
    tracker.flush(Patience(30))
    slow(tracker._run, 0.4, monkeypatch)
    record(tracker, EPOCHS)
    tracker.status("FINISHED")
    said: list[str] = []
    monkeypatch.setattr("pipeline.tracking.sender.TOLD_AFTER_SECONDS", 0.2)
    began = time.monotonic()
    assert tracker.flush(Patience(1.0, 60, said.append)) == 0
    assert time.monotonic() - began > 2
    assert "sending" in said[0]
    assert "60 s at most" in said[0]
    record(tracker, EPOCHS + 5)
    assert tracker.flush(Patience(1.0, 0.5)) > 0  # the limit
    assert tracker.flush(Patience(1.0, 60, stopped=lambda: True)) > 0
    tracker.close()


@pytest.mark.smoke
def test_what_is_left_is_told_with_its_reason_and_what_to_type(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = begin(outputs)
    tracker.flush(Patience(30))
    slow(tracker._run, 20, monkeypatch)
    record(tracker, 3)
    tracker.close(0.5)
    told = capsys.readouterr().out.splitlines()[-1]
    folder = outputs / "runs" / "tried" / "run"
    assert "5 of " in told
    assert "(the store has not answered for" in told or "(the store is too slow" in told
    assert f"`python -m pipeline.sync {folder}` sends them" in told
    assert "None" not in told
    assert sync.main([str(folder)]) == 0  # and so it does
    assert len(client(outputs).get_metric_history(str(tracker.run_id), "train/loss")) == 3


@pytest.mark.smoke
def test_a_journal_costs_training_less_than_a_millisecond_an_epoch(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin({"run_id": "a"})
    values = {f"split/metric_{index}": 1.0 / 3 for index in range(10)}
    times = []
    for step in range(200):
        began = time.thread_time()
        journal.add("metrics", {"values": values, "step": step, "time": 1})
        times.append(time.thread_time() - began)
    assert sorted(times)[100] < 0.001
    assert (tmp_path / NAME).stat().st_size > 200 * 300


class TextRun(StoredRun):
    """A store of a user's own: a text file. It is away while there is a file `away`, and refuses `bad`."""

    def reopen(self, run_id: str | None) -> None:
        super().reopen(run_id or "mine")
        self.is_new = run_id is None

    def refuses(self, error: Exception) -> bool:
        return isinstance(error, ValueError)

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        if (self.spec.outputs / "away").exists():
            raise ConnectionError("away")
        if "bad" in values:
            raise ValueError("bad")
        self._write(f"{step} {dict(values)}")

    def status(self, status: str, time: int) -> None:
        self._write(status)

    def _write(self, line: str) -> None:
        with (self.spec.outputs / self.spec.settings.options["file"]).open("a") as file:
            file.write(f"{line}\n")


OWN = TrackingSettings(_target_=f"{__name__}.TextRun", options={"file": "mine.txt"})


def test_a_store_of_ones_own_has_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost while it is away, nor twice in a resumed run; what it refuses is named."""
    monkeypatch.setattr("pipeline.tracking.sender.RETRY_SECONDS", 0.1)
    tracker = begin(tmp_path, settings=OWN)
    tracker.metrics({"loss": 1.0}, 1)
    tracker.flush(Patience(30))
    (tmp_path / "away").touch()
    tracker.metrics({"loss": 0.5}, 2)
    assert tracker.close(0.5) == 1
    (tmp_path / "away").unlink()
    tracker = begin(tmp_path, settings=OWN)
    assert tracker.run_id == "mine"
    for step, loss in ((1, 1.0), (2, 0.5), (3, 0.25)):
        tracker.metrics({"loss": loss}, step)
    tracker.metrics({"bad": 0.0}, 3)
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert (tmp_path / "mine.txt").read_text().splitlines() == [
        "RUNNING",
        "1 {'loss': 1.0}",
        "2 {'loss': 0.5}",
        "RUNNING",
        "3 {'loss': 0.25}",
        "FINISHED",
    ]
    assert "the store refuses metrics 'bad' (ValueError: bad)" in capsys.readouterr().out
    assert not (tmp_path / "mlflow.db").exists()


def test_a_folder_names_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a method by a line of its journal, nor a class that the command does not name."""
    begin(tmp_path, settings=OWN).close(30)
    folder = tmp_path / "runs" / "tried" / "run"
    with pytest.raises(UserError, match=r"was recorded by .*TextRun.*tracking\._target_=.*TextRun"):
        settings_for(folder, LOCAL)
    assert settings_for(folder, OWN) == OWN
    assert sync.main([f"--outputs={tmp_path}"]) == 1
    assert "it was recorded by" in capsys.readouterr().err
    with (folder / NAME).open("a") as file:
        number = len((folder / NAME).read_text().splitlines())
        file.write(seal({"number": number, "call": "reopen", "given": {"run_id": "x"}}) + "\n")
    journal = Journal(folder)
    assert journal.damaged == 1
    assert all(entry.call != "reopen" for entry in journal.entries)
    for target in ("os.system", "no.such.Class", "pipeline.tracking.tracker.Tracker", "x"):
        with pytest.raises(UserError, match=rf"tracking\._target_={target} cannot be used"):
            begin(tmp_path, "other", settings=TrackingSettings(_target_=target))
