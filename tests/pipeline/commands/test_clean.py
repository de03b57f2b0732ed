"""`python -m pipeline clean` removes the files that it lists, and never files that are still needed."""

import fcntl
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.commands.clean import main
from pipeline.runs.lock import locked
from stages.reporter import Reporter
from stages.storage.cache import Contents, cached
from tests.pipeline.experiments import Patch, Printed, write_files, write_run

DAYS = 86400
KEPT = {"config.yaml", "pipeline.log", "export/saved_model/saved_model.pb", "checkpoints/best.weights.h5"}
LEFTOVERS = {"checkpoints/.partial-7-step-00000030.npz"}
CHECKPOINTS = {"checkpoints/step-00000010.npz", "checkpoints/step-00000020.npz"}


def aged(folder: Path, days: float) -> None:
    then = time.time() - days * DAYS
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (then, then), follow_symlinks=False)


def make_run(outputs: Path, name: str, status: str, days: float = 40, place: str = "runs/digits_cnn") -> Path:
    folder = write_run(outputs / place / name, status)
    write_files(folder, dict.fromkeys(KEPT | LEFTOVERS | CHECKPOINTS, 10_000 * "x"))
    aged(folder, days)
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name not in (".lock",)}


def on_disk(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in [folder, *folder.rglob("*")])


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


def clean(outputs: Path, *arguments: str) -> int:
    return main(["--outputs", str(outputs), *arguments])


def test_unneeded_files_of_each_run_are_removed(outputs: Path, capsys: Printed) -> None:
    expected = {
        make_run(outputs, "finished", "FINISHED"): LEFTOVERS | CHECKPOINTS,
        make_run(outputs, "1_seed=1", "FINISHED", place="sweeps/20260101"): LEFTOVERS | CHECKPOINTS,
        make_run(outputs, "killed", "KILLED"): LEFTOVERS,
        make_run(outputs, "new", "FINISHED", days=20): set(),
    }
    damaged = make_run(outputs, "unreadable", "FINISHED")
    (damaged / "summary.json").write_text("{")
    running = make_run(outputs, "running", "RUNNING")
    expected |= {running: set(), damaged: LEFTOVERS}  # the damaged run might be resumable
    died = outputs / "runs" / "digits_cnn" / "died"  # before it wrote its summary
    write_files(died, {".lock": "", ".partial-summary.json": "{"})
    aged(died, 40)
    before = {run: files(run) for run in expected}
    size = on_disk(outputs)
    with locked(running):
        assert clean(outputs, "--dry-run") == 0
        assert {run: files(run) for run in expected} == before
        assert clean(outputs, "--yes") == 0
    assert {run: before[run] - files(run) for run in expected} == expected
    assert not died.exists()
    output = capsys.readouterr().out
    assert f"{(size - on_disk(outputs)) / 2**20:,.1f} MiB freed" in output
    assert clean(outputs, "--yes", "--unfinished", "--older-than=0", "--kind=checkpoints") == 0
    assert all(not CHECKPOINTS & files(run) for run in expected)
    assert {"summary.json", *KEPT} <= set.intersection(*map(files, before))


def test_links_are_not_followed(outputs: Path, tmp_path: Path) -> None:
    elsewhere = make_run(tmp_path / "elsewhere", "mine", "FINISHED")
    inside = make_run(outputs, "inside", "FINISHED")
    (outputs / "runs" / "digits_cnn" / "linked").symlink_to(elsewhere)
    (outputs / "runs" / "other").symlink_to(elsewhere.parent)
    (outputs / "cache").symlink_to(elsewhere.parent)
    shutil.rmtree(inside / "checkpoints")
    (inside / "checkpoints").symlink_to(elsewhere / "checkpoints")
    before = files(tmp_path)
    assert clean(outputs, "--yes", "--older-than=0") == 0
    assert files(tmp_path) == before


def test_unused_entries_of_the_cache_are_removed(outputs: Path) -> None:
    cache = outputs / "cache"

    def make(folder: Path) -> Contents:
        return Contents({}, {"data": np.zeros(100_000, np.uint8)})

    held, _ = cached(cache / "held", make, Reporter())
    cached(cache / "used", make, Reporter())
    for name in ("old", "new", ".partial-dead", ".partial-making"):
        write_files(cache / name, {"data.npy": 100_000 * "x"})
    for path in cache.iterdir():
        aged(path, 1 if path.name == "new" else 40)
    cached(cache / "used", make, Reporter())
    with (cache / ".making.lock").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        assert clean(outputs, "--yes") == 0
    left = {path.name for path in cache.iterdir() if path.is_dir()}
    assert left == {"new", "used", ".partial-making"}
    np.testing.assert_array_equal(
        held.arrays["data"], np.zeros(100_000, np.uint8)
    )  # whoever has opened the file keeps its content
    entry, is_new = cached(cache / "old", make, Reporter())
    assert (is_new, len(entry.arrays["data"])) == (True, 100_000)


def test_without_a_terminal_it_suggests_yes(outputs: Path, capsys: Printed, monkeypatch: Patch) -> None:
    run = make_run(outputs, "finished", "FINISHED")
    before = files(run)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: PTH123, SIM115
    assert clean(outputs) == 2
    assert "python -m pipeline clean --yes" in capsys.readouterr().err
    assert files(run) == before
