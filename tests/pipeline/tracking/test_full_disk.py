"""A store whose disk takes no more ends the wait at once; what it misses is sent later."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import FINISHED_SECONDS, open_tracker
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
    lines: list[str] = []
    folder = tmp_path / "run"
    folder.mkdir()
    tracker = open_tracker(RunSpec(LOCAL, disk, folder, "tried", "run"), lines.append)
    assert tracker.flush(seconds=30) == 0
    fill(disk)
    for step in range(100):
        tracker.metrics({f"a/{index}": float(step) for index in range(30)}, step)
    tracker.status("FINISHED")
    began = time.monotonic()
    assert tracker.flush(print) > 0
    assert "cannot be written (No space left on device)" in lines[0]
    assert time.monotonic() - began < FINISHED_SECONDS
    (disk / "filler").unlink()
    assert tracker.close(60) == 0
    assert only_run(disk).info.status == "FINISHED"
    assert len(client(disk).get_metric_history(str(tracker.run_id), "a/0")) == 100
