"""Commands that do not train do not import the libraries for training, which takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands

HEAVY = (
    "numpy", "pandas", "scipy", "sklearn", "matplotlib", "tensorflow", "keras", "mlflow", "sqlalchemy", "pyarrow",
    "optuna", "ray",
)  # fmt: skip

SCRIPT = """
import runpy, sys
try:
    runpy.run_module("pipeline", run_name="__main__")
finally:
    print("imported:", *sorted(set({heavy!r}) & set(sys.modules)))
"""


@pytest.mark.parametrize("words", ["--help", "--version", "trian.epochs=3", "dry_run=true"])
def test_a_command_does_not_import_them(words: str, tmp_path: Path) -> None:
    outputs = [f"outputs={tmp_path}"] if "=" in words else []
    done = commands.run_alone(SCRIPT.format(heavy=HEAVY), words, *outputs, timeout=60)
    assert done.returncode == (2 if "trian" in words else 0), done.stderr
    assert done.stdout.splitlines()[-1] == "imported:", done.stdout


def test_another_run_is_looked_up_without_tensorflow(tmp_path: Path) -> None:
    script = SCRIPT.format(heavy=("tensorflow", "keras"))
    done = commands.run_alone(script, "dry_run=true", "evaluate.against=nope", f"outputs={tmp_path}", timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "imported:"), done.stderr


@pytest.mark.parametrize("command", ["runs", "sync"])
def test_a_command_without_arguments_uses_this_directory(command: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pipeline", command]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert not list(tmp_path.iterdir())
