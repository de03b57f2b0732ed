"""The lines of code that differ between two runs are those that git shows between what they ran."""

from pathlib import Path

import pytest

from pipeline.comparison.difference import COMMIT, PATCH, source_diff
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


def test_uncommitted_changes_count_as_committed_ones_do(repository: Path, tmp_path: Path) -> None:
    (repository / "net.py").write_text("layers = 2\nunits = 8\n")
    first = record(repository, tmp_path / "first")
    commit(repository, "layers = 2\nunits = 8\n")
    same = record(repository, tmp_path / "same")
    (repository / "net.py").write_text("layers = 2\nunits = 16\n")
    second = record(repository, tmp_path / "second")
    before = git(repository, "status", "--porcelain"), sorted((repository / ".git" / "objects").rglob("*"))
    assert source_diff(first, same, repository) == ""
    lines = source_diff(first, second, repository)
    assert lines is not None
    changed = [line for line in lines.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-units = 8", "+units = 16"]
    assert (git(repository, "status", "--porcelain"), sorted((repository / ".git" / "objects").rglob("*"))) == before


def test_what_cannot_be_known_is_none(repository: Path, tmp_path: Path) -> None:
    run = record(repository, tmp_path / "run")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    commit(other, "x = 1\n")
    assert source_diff(run, record(other, tmp_path / "elsewhere"), repository) is None
    (tmp_path / "bare").mkdir()
    assert source_diff(run, tmp_path / "bare", repository) is None
