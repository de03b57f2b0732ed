"""Damaged journals: whatever happened to the file, the run ends complete, with nothing twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import sync
from pipeline.tracking.journal import NAME, SENT, Journal
from tests.pipeline.tracking.journals import EPOCHS, assert_complete, begin, cut, finish, interrupted, only_run, record

pytestmark = pytest.mark.slow


def flipped(path: Path, seed: int) -> None:
    """Changes thirty bytes somewhere."""
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(30):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def each(change: Callable[[Path], object], folder: Path) -> None:
    """Damages the journal and the count of what was sent."""
    for name in (NAME, SENT):
        change(folder / name)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "none": lambda folder: None,
    "the last line cut": lambda folder: cut(folder / NAME, (folder / NAME).stat().st_size - 9),
    "the last line gone": lambda folder: lines(folder / NAME, lambda all_: all_[:-1]),
    "cut in half": lambda folder: cut(folder / NAME, (folder / NAME).stat().st_size // 2),
    "empty": lambda folder: cut(folder / NAME, 0),
    "deleted": lambda folder: (folder / NAME).unlink(),
    "deleted with its count": lambda folder: each(Path.unlink, folder),
    "the first line gone": lambda folder: lines(folder / NAME, lambda all_: all_[1:]),
    "garbage in the middle": lambda folder: lines(folder / NAME, lambda all_: [*all_[:3], b"\xff{]\n", *all_[3:]]),
    "a line of other JSON": lambda folder: lines(folder / NAME, lambda all_: [b'[1]\n{"call": 1}\n', *all_]),
    "NULs at the end": lambda folder: (folder / NAME).write_bytes((folder / NAME).read_bytes() + bytes(4096)),
    "NULs within": lambda folder: (folder / NAME).write_bytes((folder / NAME).read_bytes()[:700] + bytes(900)),
    "NULs for the end of a line": lambda folder: lines(
        folder / NAME, lambda all_: [*all_[:4], all_[4][:-1], bytes(900)]
    ),
    "all lines twice": lambda folder: lines(folder / NAME, lambda all_: all_ + all_),
    "lines in another order": lambda folder: lines(folder / NAME, lambda all_: all_[::-1]),
    "another encoding": lambda folder: (folder / NAME).write_text((folder / NAME).read_text(), "utf-16"),
    "Windows line ends": lambda folder: lines(folder / NAME, lambda all_: [line[:-1] + b"\r\n" for line in all_]),
    "a huge line": lambda folder: (folder / NAME).write_bytes(b"x" * 3_000_000 + (folder / NAME).read_bytes()),
    "flipped bits": lambda folder: flipped(folder / NAME, 1),
    "flipped bits in both": lambda folder: each(lambda path: flipped(path, 2), folder),
    "no count": lambda folder: (folder / SENT).unlink(),
    "a negative count": lambda folder: (folder / SENT).write_text("-7"),
    "a count of garbage": lambda folder: (folder / SENT).write_bytes(b"\0\xff[["),
    "too high a count": lambda folder: (folder / SENT).write_text("9999"),
    "an empty count": lambda folder: cut(folder / SENT, 0),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_run_with_a_damaged_journal_ends_complete_with_nothing_twice(kind: str, outputs: Path) -> None:
    folder = interrupted(outputs)
    before = only_run(outputs).info.run_id
    DAMAGE[kind](folder)
    said: list[str] = []
    finish(outputs, said.append)
    assert assert_complete(outputs).info.run_id == before
    skipped = [line for line in said if "damaged" in line]
    assert len(skipped) <= 1
    if "garbage in" in kind:
        assert "1 damaged or missing lines of" in skipped[0]


def test_a_journal_that_is_deleted_while_the_run_goes_on_is_written_again(outputs: Path) -> None:
    tracker = begin(outputs)
    record(tracker, EPOCHS)
    folder = outputs / "runs" / "tried" / "run"
    (folder / NAME).unlink()
    (folder / SENT).unlink(missing_ok=True)
    record(tracker, EPOCHS + 2)
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert_complete(outputs)
    assert not Journal(folder).refused


def test_every_cut_of_a_journal_is_survived(outputs: Path) -> None:
    """At each byte of its last lines, and every hundredth of the others."""
    folder = interrupted(outputs)
    whole = (folder / NAME).read_bytes()
    count = len(Journal(folder).entries)
    for size in [*range(0, len(whole), 100), *range(len(whole) - 150, len(whole))]:
        cut(folder / NAME, 0)
        (folder / NAME).write_bytes(whole[:size])
        journal = Journal(folder)
        ends = (whole[:size] + b"\n" * (whole[size : size + 1] == b"\n")).count(b"\n")  # whole without its end, too
        assert len(journal.entries) == max(ends - 1, 0)
        assert journal.trusted == (len(journal.entries) == count)


def test_sync_mends_a_damaged_journal(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run that has ended; nothing is sent twice, and a second time there is nothing to do."""
    interrupted(outputs)
    finish(outputs)
    folder = outputs / "runs" / "tried" / "run"
    flipped(folder / NAME, 3)
    (folder / SENT).unlink()
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert_complete(outputs)
    assert "Traceback" not in capsys.readouterr().err
    assert sync.main([f"--outputs={outputs}"]) == 0
    assert "sent" not in capsys.readouterr().out.replace("nothing is left to send", "")
