"""Stores that lose one run or all runs get them again completely."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.commands import sync
from tests import commands
from tests.pipeline.tracking import made_store
from tests.pipeline.tracking.journals import (
    EPOCHS,
    assert_complete,
    begin,
    client,
    finish,
    folder_of,
    interrupted,
    only_run,
    record,
)

pytestmark = pytest.mark.slow


LOSE: dict[str, Callable[[Path, Path], object]] = {
    "deleted": lambda outputs, empty: (outputs / "mlflow.db").unlink(),
    "overwritten": lambda outputs, empty: shutil.copyfile(empty, outputs / "mlflow.db"),
    "truncated": lambda outputs, empty: (outputs / "mlflow.db").write_bytes(b""),
    "without the run": lambda outputs, empty: client(outputs).delete_run(only_run(outputs).info.run_id),
    "without all": lambda outputs, empty: client(outputs).delete_experiment(only_run(outputs).info.experiment_id),
}
"""Ways to lose a store or parts of it. A deleted experiment is restored with its runs."""


def test_a_store_is_created_completely_or_not_at_all(tmp_path: Path) -> None:
    """There is no database in the meantime, or after a kill: an incomplete one has the schema of an older MLflow."""
    with commands.start(str(tmp_path), module=made_store.__name__) as process:
        while not list(tmp_path.glob("mlflow.db*-journal")):
            assert process.poll() is None
        process.kill()
    assert not (tmp_path / "mlflow.db").exists()
    with commands.start(str(tmp_path), module=made_store.__name__) as process:
        seen = set()
        while process.poll() is None:
            if (tmp_path / "mlflow.db").exists():
                with closing(sqlite3.connect(tmp_path / "mlflow.db", timeout=60)) as database:
                    seen |= set(database.execute("SELECT version_num FROM alembic_version"))
            time.sleep(0.02)
    assert len(seen) <= 1
    assert process.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow.lock"}
    assert client(tmp_path).search_experiments()


@pytest.mark.parametrize("lost", LOSE)
def test_the_next_command_fills_a_store_that_was_lost_during_a_run(
    lost: str, outputs: Path, migrated_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has the records that were written to a deleted file, or not at all."""
    monkeypatch.setattr("pipeline.tracking.tracker.STOPPED_SECONDS", 1.0)
    before_it = set(threading.enumerate())
    tracker = begin(outputs)
    record(tracker, EPOCHS)
    assert tracker.flush(seconds=30) == 0
    before = tracker.run_id
    LOSE[lost](outputs, migrated_store)
    record(tracker, EPOCHS + 2)
    tracker.status("FINISHED")
    tracker.close(2)
    for thread in set(threading.enumerate()) - before_it:  # they end with a run's process; here they make a store
        thread.join(60)
        assert not thread.is_alive()
    assert sync.main([str(folder_of(outputs))]) == 0
    run = assert_complete(outputs)
    assert lost == "without all" or run.data.tags["replaces_run"] == before


@pytest.mark.parametrize("lost", ["overwritten", "without the run"])
def test_the_same_command_fills_a_store_that_was_lost_between_commands(
    lost: str, outputs: Path, migrated_store: Path
) -> None:
    interrupted(outputs)
    LOSE[lost](outputs, migrated_store)
    finish(outputs)
    assert_complete(outputs)


def test_sync_fills_a_store_that_was_lost_after_the_end(outputs: Path, migrated_store: Path) -> None:
    """A run that was deleted in the store stays deleted until the user names it."""
    interrupted(outputs)
    finish(outputs)
    LOSE["without the run"](outputs, migrated_store)
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert not client(outputs).search_runs([client(outputs).search_experiments()[0].experiment_id])
    assert sync.main([str(folder_of(outputs))]) == 0
    assert_complete(outputs)
    LOSE["deleted"](outputs, migrated_store)
    assert sync.main([f"--outputs={outputs}", "--again"]) == 0
    assert_complete(outputs)


def test_an_older_backup_of_the_store_gets_what_it_lacks_when_requested(outputs: Path) -> None:
    """Nothing is recorded twice, although everything is sent again."""
    tracker = begin(outputs)
    record(tracker, 2)
    assert tracker.flush(seconds=30) == 0
    shutil.copy(outputs / "mlflow.db", outputs / "backup.db")
    record(tracker, EPOCHS)
    assert tracker.flush(seconds=30) == 0
    shutil.copyfile(outputs / "backup.db", outputs / "mlflow.db")
    record(tracker, EPOCHS + 2)
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    for _ in range(2):
        assert sync.main([f"--outputs={outputs}", "--again"]) == 0
        assert assert_complete(outputs).info.run_id == tracker.run_id
