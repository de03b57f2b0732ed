"""The command printed for two runs shows the lines of code in which they differ."""

import shlex
from pathlib import Path

import pytest

from pipeline.commands import diff
from pipeline.comparison.difference import COMMIT, PATCH, difference
from pipeline.provenance import code_state
from pipeline.runs.journal import Header, Journal
from pipeline.runs.summary import Summary
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
    """Write the journal of a run with the current code in `repository`."""
    state = code_state.code_state(repository)
    assert state is not None
    run.mkdir()
    Summary(None, "FINISHED", "tried", run, {}).write(run)
    journal = Journal(run)
    journal.begin(Header())
    journal.add("tags", {"values": {COMMIT: state.commit}})
    if state.diff:
        journal.add("text", {"name": PATCH, "content": state.diff})
    journal.flush()
    return run


def test_the_command_shows_the_lines_that_differ(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = record(repository, tmp_path / "first")
    commit(repository, "layers = 1\nunits = 16\n")
    second = record(repository, tmp_path / "second")
    assert diff.main([str(first), str(second)]) == 1
    typed, *words = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("lines: "))
    assert typed == "git"
    lines = git(repository, *words).splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-units = 8", "+units = 16"]
    assert diff.main([str(first), str(first)]) == 0


def test_uncommitted_changes_and_unknown_commits_are_reported(repository: Path, tmp_path: Path) -> None:
    clean = record(repository, tmp_path / "clean")
    (repository / "net.py").write_text("layers = 2\nunits = 8\n")
    run = record(repository, tmp_path / "run")
    pairs = difference(Summary.read(clean), Summary.read(run), print)["code"]
    assert pairs == {"uncommitted changes": (None, "artifact code/diff.patch")}
