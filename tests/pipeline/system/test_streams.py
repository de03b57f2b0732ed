"""Commands that print their result report an error if part of it could not be written."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.made_runs import MadeRun, make_sweep
from tests.conftest import ROOT

DRY = "pipeline dry_run=true outputs={place}"
LONG = ("pipeline --cfg job", f"{DRY} sweep=tpe +sweep.over.seed=[1,2]", "pipeline runs --outputs={place}")
SLOW = [pytest.param(arguments, marks=pytest.mark.slow) for arguments in LONG]


@pytest.mark.parametrize("arguments", ["pipeline --help", DRY, *SLOW])
def test_a_full_disk_behind_standard_output_is_an_error(arguments: str, tmp_path: Path) -> None:
    full = by_shell(f"'{sys.executable}' -m {arguments.format(place=tmp_path)} >/dev/full")
    expected = "error: standard output: No space left on device, so part of the output is lost\n"
    assert (full.returncode, full.stderr) == (1, expected)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [">&-", "| head -c 1", "<&- >&- 2>&-", "2>/dev/full >/dev/null"])
def test_closed_streams_do_not_cause_errors(ending: str, tmp_path: Path) -> None:
    done = by_shell(f"'{sys.executable}' -m {DRY.format(place=tmp_path)} {ending}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make_sweep(tmp_path / "sweeps" / "s", [MadeRun({"seed": "1"}, None)])
    done = by_shell(f"'{sys.executable}' -m pipeline compare --outputs='{tmp_path}' --to='{tmp_path}/file/in'")
    assert (done.returncode, done.stderr) == (1, f"error: {tmp_path}/file/in: Not a directory\n")


def test_a_pipe_gets_one_line_per_run(tmp_path: Path) -> None:
    place = tmp_path / ("long " * 40)
    make_sweep(place / "sweeps" / "s", [MadeRun({"seed": str(number)}, None) for number in range(2)])
    done = by_shell(f"COLUMNS=20 '{sys.executable}' -m pipeline runs --outputs='{place}' | cat")
    assert [line.split()[:1] for line in done.stdout.splitlines()][:1] == [["id"]]
    assert sum(str(place) in line for line in done.stdout.splitlines()) == len(done.stdout.splitlines()) - 1 >= 2


def by_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
