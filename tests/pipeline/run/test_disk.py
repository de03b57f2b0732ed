"""A disk that is full, a folder that can no longer be written, memory that is not there: real ones, small."""

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.system.streams import no_room
from stages.checkpoints.files import read
from stages.storage.atomic import atomic_write
from tests import commands
from tests.pipeline.experiments import TRAINED

pytestmark = pytest.mark.slow

GIVEN = (
    "model=mlp",
    "model.network.hidden=[256]",
    "train.epochs=6",
    "train.checkpoint_every_steps=20",
)


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user cannot mount a file system here ({done.stderr.strip()})")


@pytest.fixture
def small_disk(tmp_path: Path, migrated_store: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of its own with room for a store and so many KiB more."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def make(kib: int) -> Path:
        size = migrated_store.stat().st_size // 1024 + kib
        mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk))
        shutil.copy(migrated_store, disk / "mlflow.db")
        return disk

    yield make
    subprocess.run(["umount", "--lazy", str(disk)], check=False, capture_output=True)


def run(outputs: Path, *given: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*GIVEN, *given, f"outputs={outputs}")


def started(outputs: Path) -> commands.Command:
    given = (*GIVEN, "train.epochs=5000", f"outputs={outputs}")
    return commands.start(*given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def summary(outputs: Path) -> dict[str, Any]:
    [path] = outputs.glob("runs/*/*/summary.json")
    return json.loads(path.read_text())


def checkpoints(outputs: Path) -> list[Path]:
    return sorted(outputs.glob("runs/*/*/checkpoints/step-*.npz"))


def test_a_full_disk_fails_the_run_in_one_line_and_costs_no_checkpoint(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(850)
    done = run(disk)
    assert done.returncode == 1, done.stdout
    said = [line for line in done.stdout.splitlines() if line.startswith("error: train: ")]
    assert len(said) == 1, done.stdout
    assert "a checkpoint cannot be written to" in said[0]
    assert "No space left on device" in said[0]
    assert "Traceback" not in done.stdout + done.stderr
    kept = checkpoints(disk)
    assert kept
    step = max(read(path).step for path in kept)  # each of them is whole
    assert not list(disk.rglob(".partial-*"))
    assert summary(disk)["status"] == "FAILED"
    mount("-o", "remount,size=64m", str(disk))
    again = run(disk)
    assert again.returncode == 0, again.stdout
    assert summary(disk)["resumed_from_step"] == step
    assert summary(disk)["status"] == "FINISHED"


def test_a_disk_that_stays_full_fails_the_run_in_one_line(small_disk: Callable[[int], Path]) -> None:
    """Not one more byte fits: no log, no summary, no record; what happened is said all the same."""
    disk = small_disk(4000)
    with started(disk) as process:
        assert process.stdout is not None
        assert any(re.match(r"epoch +3/5000", line) for line in iter(process.stdout.readline, ""))
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1024))
        printed = process.stdout.read()
        assert process.wait(300) == 1, printed
    assert "No space left on device" in printed
    assert "Traceback" not in printed
    assert printed.count("error: train: ") == 1
    (disk / "filler").unlink()
    kept = checkpoints(disk)
    assert all(read(path).step for path in kept)
    again = run(disk, "train.epochs=5000", "dry_run=true")
    assert "(status: " in again.stdout


def test_a_sweep_on_a_full_disk_says_so_in_one_line(small_disk: Callable[[int], Path]) -> None:
    """Where its own files do not fit, and where those of a job do not; with room the same command ends it."""
    disk = small_disk(64)
    given = ("-m", "seed=1,2", *GIVEN, "train.epochs=1", "tracking=off", f"outputs={disk}", *TRAINED)
    (disk / "filler").write_bytes(bytes(56 * 1024))
    done = commands.run(*given)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stdout + done.stderr
    assert re.search(r"^error: .*/sweeps/.* cannot be written \(No space left on device\)\. Expected", done.stderr)
    (disk / "filler").unlink()
    mount("-o", "remount,size=64m", str(disk))
    assert commands.run(*given).returncode == 0


def test_an_error_of_a_full_disk_is_no_defect(tmp_path: Path) -> None:
    """Whoever writes: HDF5 has a message of six lines of its own, a write through Python's files names no file."""
    of_hdf5 = OSError(errno.ENOSPC, "Can't synchronously write data (time = …\n, file descriptor = 3)")
    said = str(no_room(of_hdf5))
    assert said.startswith("a file cannot be written (No space left on device). Expected a folder with room")
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
