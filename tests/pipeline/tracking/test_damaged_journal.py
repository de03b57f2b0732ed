"""Damaged journals: what can be read counts, and is sent once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.tracking.journal import NAME, SENT, Journal
from tests.pipeline.tracking.journals import assert_complete, begin, client, cut, finish, interrupted, only_run

pytestmark = pytest.mark.slow

DAMAGE: dict[str, Callable[[Path], object]] = {
    "none": lambda folder: None,
    "a line that a crash has cut": lambda folder: append(folder, b'\n{"call": "metrics", "giv'),
    "NULs at the end": lambda folder: append(folder, bytes(4096)),
    "no count": lambda folder: (folder / SENT).unlink(),
    "a count of garbage": lambda folder: (folder / SENT).write_bytes(b"\0\xff[["),
    "too high a count": lambda folder: (folder / SENT).write_text("9999"),
    "an empty count": lambda folder: cut(folder / SENT, 0),
}


def append(folder: Path, content: bytes) -> None:
    with (folder / NAME).open("ab") as file:
        file.write(content)


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_a_crash_leaves_of_a_journal_ends_complete_with_nothing_twice(kind: str, outputs: Path) -> None:
    folder = interrupted(outputs)
    before = only_run(outputs).info.run_id
    DAMAGE[kind](folder)
    said: list[str] = []
    finish(outputs, said.append)
    assert assert_complete(outputs, damaged=int("cut" in kind)).info.run_id == before
    assert [line for line in said if "1 damaged lines of" in line] == said[: "cut" in kind]


def test_a_line_that_cannot_be_read_is_passed_over_and_takes_no_other_with_it(outputs: Path) -> None:
    tracker = begin(outputs)
    tracker.metrics({"a": 1.0}, 1)
    tracker.close(30)
    folder = outputs / "runs" / "tried" / "run"
    sent = Journal(folder).sent
    lines = (folder / NAME).read_bytes().splitlines(keepends=True)
    (folder / NAME).write_bytes(b"".join([*lines[:3], b"\xff" * 30 + b"\n", *lines[4:]]))
    journal = Journal(folder)
    assert (journal.damaged, journal.sent, journal.unsent) == (1, sent, 0)
    journal.add("metrics", {"values": {"b": 2.0}, "step": 2, "time": 1})
    assert [entry.call for entry in Journal(folder).entries[sent:]] == ["metrics"]
    begin(outputs).close(30)
    points = client(outputs).get_metric_history(only_run(outputs).info.run_id, "b")
    assert [(point.step, point.value) for point in points] == [(2, 2.0)]


def test_every_cut_of_a_journal_is_survived(outputs: Path) -> None:
    """At each byte of its last lines, and every hundredth of the others: whole lines are there, and nothing else."""
    folder = interrupted(outputs)
    whole = (folder / NAME).read_bytes()
    entries = Journal(folder).entries
    for size in [*range(0, len(whole), 100), *range(len(whole) - 150, len(whole))]:
        (folder / NAME).write_bytes(whole[:size])
        journal = Journal(folder)
        ends = (whole[:size] + b"\n")[1:].count(b"\n") - (size < len(whole) and whole[size] != 10)
        assert journal.entries[: max(ends - 1, 0)] == entries[: max(ends - 1, 0)]
        assert len(journal.entries) - journal.damaged == max(ends - 1, 0)
        assert journal.unsent == len(journal.entries) or journal.sent <= len(journal.entries)
