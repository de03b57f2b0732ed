"""Results may be in any folder, and leave other files there unchanged."""

import dataclasses
from pathlib import Path

import pytest

from pipeline.checks.registry import PATTERNS, check_rules
from pipeline.provenance.code_state import unknown_to_git
from stages.errors import UserError
from tests.pipeline.experiments import experiment, write_files
from tests.pipeline.provenance.test_code_state import git


@pytest.mark.parametrize("own", [[], ["train.py", "src/cache/keys.py"]])
def test_only_results_are_hidden_from_git(own: list[str], tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    results = ["runs/a/b/summary.json", "sweeps/c/sweep.json", "cache/d/x.npy", "artifacts/1/MLmodel", "mlflow.db-wal"]
    write_files(tmp_path, dict.fromkeys([*own, *results], "x"))
    unknown_to_git(tmp_path)
    assert git(tmp_path, "status", "--porcelain", "--untracked-files=all").split()[1::2] == sorted(own)


def test_an_existing_gitignore_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    unknown_to_git(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "*.log\n"


def test_only_paths_with_pattern_characters_are_refused(tmp_path: Path) -> None:
    """TensorFlow cannot export to such a path, and SQLite would open a different file."""
    good = experiment(outputs=tmp_path)
    for letter in (*PATTERNS, "\n", "\x07"):
        odd = tmp_path / f"a{letter}b"
        with pytest.raises(UserError, match=r"^outputs="):
            check_rules(dataclasses.replace(good, outputs=odd))
        assert not odd.exists()
    for name in ("a b", "ü", "a#b", "a'b", 'a"b', "a;b", "a{b}", "~a", "a&b", "a:b", "a@b", "a,b", "a=b", "$a", "-a"):
        check_rules(dataclasses.replace(good, outputs=tmp_path / name))
