"""Runs and sweeps on a full disk. The disk is real, but small."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.system.streams import no_room
from pipeline.tracking.stored_run import RunSpec
from stages.checkpoints.files import read
from stages.storage.atomic import atomic_write
from tests import commands
from tests.pipeline.experiments import TRAINED
from tests.pipeline.tracking.journals import LOCAL, Tried, only_run, steps

pytestmark = pytest.mark.slow

GIVEN = ("model=mlp", "model.network.hidden=[256]", "train.checkpoint_every_steps=20")


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user cannot mount a file system here ({done.stderr.strip()})")


@pytest.fixture
def small_disk(tmp_path: Path, migrated_store: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that makes a file system with space for a store and some more KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def make(kib: int) -> Path:
        size = migrated_store.stat().st_size // 1024 + kib
        mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk))
        shutil.copy(migrated_store, disk / "mlflow.db")
        return disk

    yield make
    subprocess.run(["umount", "--lazy", str(disk)], check=False, capture_output=True)


def fill(disk: Path) -> None:
    """Fill the disk completely, so no log, summary or record can be written."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1024))


def test_a_full_disk_fails_the_run_in_one_line_and_costs_no_checkpoint(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(4000)
    given = (*GIVEN, "train.epochs=5000", f"outputs={disk}")
    with commands.start(*given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert any(re.match(r"epoch +3/5000", line) for line in iter(process.stdout.readline, ""))
        fill(disk)
        printed = process.stdout.read()
        assert process.wait(300) == 1, printed
    assert "No space left on device" in printed
    assert "Traceback" not in printed
    assert printed.count("error: train: ") == 1
    (disk / "filler").unlink()
    kept = [*disk.glob("runs/*/*/checkpoints/step-*.npz")]
    assert kept
    assert all(read(path).step for path in kept)
    assert "(status: " in commands.run(*given, "dry_run=true").stdout


def test_a_sweep_on_a_full_disk_reports_it_in_one_line(small_disk: Callable[[int], Path]) -> None:
    """Its own files do not fit. When there is space again, the same command finishes the sweep."""
    disk = small_disk(64)
    given = ("-m", "seed=1,2", *GIVEN, "train.epochs=1", "tracking=off", f"outputs={disk}", *TRAINED)
    (disk / "filler").write_bytes(bytes(56 * 1024))
    done = commands.run(*given)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stdout + done.stderr
    assert re.search(r"^error: .*/sweeps/.* cannot be written \(No space left on device\)\. Expected", done.stderr)
    (disk / "filler").unlink()
    mount("-o", "remount,size=64m", str(disk))
    assert commands.run(*given).returncode == 0


def test_a_store_on_a_full_disk_gets_the_rest_later(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk, lines = small_disk(4000), list[str]()
    (tmp_path / "run").mkdir()
    tracker = Tried(RunSpec(LOCAL, disk, tmp_path / "run", "tried", "run"), lines.append)
    assert tracker.flush(seconds=30) == 0
    fill(disk)
    for step in range(100):
        tracker.metrics({f"a/{index}": float(step) for index in range(30)}, step)
    tracker.status("FINISHED")
    assert tracker.flush(seconds=3) > 0
    assert "disk is full" in lines[0]
    (disk / "filler").unlink()
    assert tracker.close(60) == 0
    assert only_run(disk).info.status == "FINISHED"
    assert steps(disk, "a/0") == list(range(100))


def test_an_error_of_a_full_disk_is_not_reported_as_a_defect(tmp_path: Path) -> None:
    """HDF5 raises a message of six lines, and a write to a Python file does not name the file."""
    of_hdf5 = OSError(errno.ENOSPC, "Can't synchronously write data (time = …\n, file descriptor = 3)")
    said = str(no_room(of_hdf5))
    assert said.startswith(
        "a file cannot be written (No space left on device). Expected a folder on a disk with free space"
    )
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        wrapped = RuntimeError("wrapped")
        wrapped.__cause__ = OSError(number, os.strerror(number), "x")
        assert str(no_room(wrapped)).startswith(f"x cannot be written ({os.strerror(number)})")
    assert no_room(OSError(errno.EACCES, "Permission denied")) is None
    assert no_room(ValueError("No space left on device")) is None

    def full(partial: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        atomic_write(tmp_path / "a.json", full)
    assert caught.value.filename == str(tmp_path / "a.json")
