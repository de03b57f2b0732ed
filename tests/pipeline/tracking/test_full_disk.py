"""A store whose disk takes no more ends the wait at once, in the words of a full disk; what it misses is sent later."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pipeline.system.streams import no_room
from pipeline.tracking.sender import FINISHED_SECONDS
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import open_tracker
from tests import commands
from tests.conftest import ROOT
from tests.pipeline.experiments import SMALL, TRAINED
from tests.pipeline.run.test_disk import mount
from tests.pipeline.tracking.journals import LOCAL, client, only_run

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path, migrated_store: Path) -> Iterator[Path]:
    """A small file system of its own, with a store."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={migrated_store.stat().st_size // 1024 + 4000}k", "tmpfs", str(place))
    shutil.copy(migrated_store, place / "mlflow.db")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_store_that_takes_no_more_is_not_waited_for(disk: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    tracker = open_tracker(RunSpec(LOCAL, disk, folder, "tried", "run"), print)
    assert tracker.flush(seconds=30) == 0
    fill(disk)
    for step in range(100):
        tracker.metrics({f"a/{index}": float(step) for index in range(30)}, step)
    tracker.status("FINISHED")
    began = time.monotonic()
    assert tracker.flush(print) > 0
    assert tracker.no_room is not None
    assert "the store's database cannot be written (No space left on device)" in tracker.no_room.problem
    assert time.monotonic() - began < FINISHED_SECONDS
    (disk / "filler").unlink()
    assert tracker.close(60) == 0
    assert tracker.no_room is None
    assert only_run(disk).info.status == "FINISHED"
    assert len(client(disk).get_metric_history(str(tracker.run_id), "a/0")) == 100


FILLS = """
def finish(trained, settings):
    with open(settings["filler"], "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return None
"""


def test_a_run_whose_store_is_full_at_its_end_has_finished_and_says_so(disk: Path, outputs: Path) -> None:
    """With exit code 1, in the words of a full disk; the same command sends the rest, and trains nothing."""
    (outputs / "mlflow.db").unlink(missing_ok=True)
    (outputs / "mlflow.db").symlink_to(disk / "mlflow.db")
    (outputs / "own_filler.py").write_text(FILLS)
    variables = {**os.environ, "PYTHONPATH": f"{outputs}:{ROOT}"}
    given = [*SMALL, *TRAINED, f"outputs={outputs}", "+pipeline.finish=done"]
    given.append(f"+finish={{_target_: own_filler.finish, filler: {disk / 'filler'}}}")
    done = commands.run(*given, cwd=outputs, env=variables)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error: recording: the store's database cannot be written (No space left on device)" in done.stdout
    [path] = outputs.glob("runs/*/*/summary.json")
    assert json.loads(path.read_text())["status"] == "FINISHED"
    (disk / "filler").unlink()
    again = commands.run(*given, cwd=outputs, env=variables)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing is trained" in again.stdout
    assert only_run(outputs, "synthetic_mlp").info.status == "FINISHED"


@pytest.mark.smoke
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_is_known_by_its_cause(number: int) -> None:
    try:
        raise RuntimeError("wrapped") from OSError(number, os.strerror(number), "x")
    except RuntimeError as error:
        found = no_room(error)
    assert found is not None
    assert os.strerror(number) in found.problem
    assert no_room(OSError(errno.EIO, "of another device")) is None
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert "No space left on device" in str(no_room(full))


@pytest.mark.smoke
def test_a_database_that_cannot_be_written_is_known_by_its_cause(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE a (b)").connection.close()
    readable = sqlite3.connect(f"file:{tmp_path}/x.db?mode=ro", uri=True)
    with closing(readable), pytest.raises(sqlite3.OperationalError) as raised:
        readable.execute("INSERT INTO a VALUES (1)")
    assert "Read-only" in str(no_room(raised.value))
