"""Tables in documents stand between marks, and nowhere else."""

from pathlib import Path

import pytest

from benchmarks.page import put

PAGE = "before\n<!-- own:begin, made by `make` -->\n\nold\n\n<!-- own:end -->\nafter\n"


def test_a_table_takes_the_place_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    put(page, "own", r"| new \1 |")
    assert page.read_text() == PAGE.replace("old", r"| new \1 |")


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="has the marks of other 0 times"):
        put(page, "other", "new")
    assert page.read_text() == PAGE
