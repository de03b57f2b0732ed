"""What a process was started with, so that no command can work, is refused in one line before anything else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import paths
from pipeline.api import compose
from stages.errors import UserError
from tests.conftest import ROOT


@pytest.mark.parametrize("module", ["pipeline", "pipeline.runs"])
def test_a_removed_working_directory_is_named(module: str, tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    command = f"cd '{place}' && rmdir '{place}' && exec '{sys.executable}' -m {module} dry_run=true"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)
    said = "error: the working directory is gone. Expected a directory that exists. Try: cd <folder>\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_directory_that_is_removed_later_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages do without it; what begins is refused."""
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    assert paths.shorter(place / "run") == "run"
    place.rmdir()
    assert paths.shorter(place / "run") == str(place / "run")
    with pytest.raises(UserError, match="the working directory is gone"):
        compose(["model=mlp"])
