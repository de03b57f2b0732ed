"""What a process was started with, and what may change about it."""

from pathlib import Path

import pytest

from pipeline import paths


def test_a_directory_that_is_removed_later_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages do without it."""
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    assert paths.shorter(place / "run") == "run"
    place.rmdir()
    assert paths.shorter(place / "run") == str(place / "run")
