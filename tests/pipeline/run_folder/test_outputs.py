"""Results may lie anywhere, and change nothing of somebody else's there."""

import dataclasses
from pathlib import Path

import pytest

from pipeline.checks.registry import PATTERNS, check_rules
from pipeline.provenance.code_state import unknown_to_git
from stages.errors import UserError
from tests.pipeline.experiments import experiment

OURS: tuple[list[str], ...] = ([], ["runs/", "cache/", "mlflow.db", "mlflow.db-wal", "mlflow.lock", ".gitignore"])
SHARED = ([".git/"], ["train.py"], ["runs/", "notes.txt"])


def folder(path: Path, holds: list[str]) -> Path:
    for name in holds:
        (path / name).mkdir() if name.endswith("/") else (path / name).touch()
    return path


@pytest.mark.parametrize("holds", OURS)
def test_a_folder_of_results_alone_is_hidden_from_git(holds: list[str], tmp_path: Path) -> None:
    unknown_to_git(folder(tmp_path, [name for name in holds if name != ".gitignore"]))
    assert (tmp_path / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("holds", SHARED)
def test_a_folder_of_somebody_elses_stays_as_it_is(holds: list[str], tmp_path: Path) -> None:
    unknown_to_git(folder(tmp_path, holds))
    assert not (tmp_path / ".gitignore").exists()
    made = {path.name for path in tmp_path.iterdir()} - {name.rstrip("/") for name in holds}
    assert made == {"runs", "sweeps", "cache", "artifacts"} - {name.rstrip("/") for name in holds}
    assert all((tmp_path / name / ".gitignore").read_text() == "*\n" for name in made)
    assert not any((tmp_path / name.rstrip("/") / ".gitignore").exists() for name in holds)


def test_a_pattern_in_a_path_is_refused_and_nothing_else(tmp_path: Path) -> None:
    """TensorFlow cannot export to such a path, and SQLite would open another file."""
    good = experiment(outputs=tmp_path)
    for letter in (*PATTERNS, "\n", "\x07"):
        odd = tmp_path / f"a{letter}b"
        with pytest.raises(UserError, match=r"^outputs="):
            check_rules(dataclasses.replace(good, outputs=odd))
        assert not odd.exists()
    for name in ("a b", "ü", "a#b", "a'b", 'a"b', "a;b", "a{b}", "~a", "a&b", "a:b", "a@b", "a,b", "a=b", "$a", "-a"):
        check_rules(dataclasses.replace(good, outputs=tmp_path / name))
