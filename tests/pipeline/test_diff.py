"""The command that is printed for two runs shows, typed, the lines of code in which they differ."""

import shlex
from pathlib import Path

import pytest

from pipeline.diff import COMMIT, PATCH, code_lines
from pipeline.provenance import code_state
from pipeline.tracking.journal import Journal
from tests.pipeline.provenance.test_code_state import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, "layers = 1\nunits = 8\n")
    return folder


def commit(repository: Path, text: str) -> None:
    (repository / "net.py").write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "a change")


def record(repository: Path, run: Path) -> Path:
    """Writes the journal of a run with the code in `repository` as it is now."""
    state = code_state.code_state(repository)
    assert state is not None
    run.mkdir()
    journal = Journal(run)
    journal.begin({})
    journal.add("tags", {"values": {COMMIT: state.commit}})
    if state.diff:
        journal.add("text", {"name": PATCH, "content": state.diff})
    journal.flush()
    return run


def test_the_command_shows_the_lines_that_differ(repository: Path, tmp_path: Path) -> None:
    first = record(repository, tmp_path / "first")
    commit(repository, "layers = 1\nunits = 16\n")
    second = record(repository, tmp_path / "second")
    *commits, command = code_lines(first, second)
    assert [line.partition(":")[0] for line in commits] == ["first", "second"]
    typed, *words = shlex.split(command)
    assert typed == "git"
    lines = git(repository, *words).splitlines()
    assert [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
        "-units = 8",
        "+units = 16",
    ]
    assert len(code_lines(first, first)) == 2


def test_uncommitted_changes_and_unknown_commits_are_said(repository: Path, tmp_path: Path) -> None:
    (repository / "net.py").write_text("layers = 2\nunits = 8\n")
    run = record(repository, tmp_path / "run")
    (tmp_path / "bare").mkdir()
    said = code_lines(run, tmp_path / "bare")
    assert "with uncommitted changes, the artifact code/diff.patch of its tracked run" in said[0]
    assert said[1:] == ["bare: commit not recorded"]
