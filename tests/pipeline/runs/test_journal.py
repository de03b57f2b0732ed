"""A journal that was damaged by a crash or a full disk: the readable entries are kept and sent once."""

import resource
import signal
import time
from pathlib import Path

import pytest

from pipeline.runs.journal import NAME, SENT, Header, Journal, Upload
from tests.pipeline.tracking.journals import begin, client, folder_of, only_run, steps


def journal_of(folder: Path, *entries: str, sent: int = 0) -> Journal:
    journal = Journal(folder)
    journal.begin(Header(session="a"))
    for entry in entries:
        journal.add("tags", {"values": {"n": entry}})
    journal.write_upload(Upload(sent=sent))
    return journal


def tags(folder: Path) -> list[str | None]:
    return [entry.arguments["values"].get("n") for entry in Journal(folder).entries]


@pytest.mark.slow
def test_the_journal_of_a_dead_process_is_sent_once(outputs: Path) -> None:
    """The process died while it wrote a line. Its disk lost other lines and the number of sent entries."""
    first = begin(outputs)
    first.metrics({"train/loss": 1.0, "val/loss": float("nan")}, step=1)
    assert first.close(30) == 0
    folder = folder_of(outputs)
    (folder / SENT).write_bytes(b"\0\xff[[")
    with (folder / NAME).open("ab") as file:
        file.write(b"\n\xff\xfe\n" + bytes(4096) + b'\n{"call": "metrics", "given": {"values": {"train/')
    said: list[str] = []
    again = begin(outputs, warn=said.append)
    again.metrics({"train/loss": 2.0}, step=1)  # the first value of a step is kept
    again.metrics({"train/loss": 0.5}, step=2)
    again.status("FINISHED")
    assert again.close(30) == 0
    run = only_run(outputs)
    assert (run.info.run_id, run.info.status) == (first.run_id, "FINISHED")
    history = client(outputs).get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5)]
    assert steps(outputs, "val/loss") == [1]
    assert Journal(folder).is_closed
    assert len([line for line in said if "2 damaged lines of" in line]) == 1


@pytest.mark.parametrize("count", [None, b"\0\xff[[", b"9999", b""])
def test_without_a_valid_count_everything_is_sent_again(count: bytes | None, tmp_path: Path) -> None:
    journal_of(tmp_path, "1", "2", sent=2)
    (tmp_path / SENT).unlink() if count is None else (tmp_path / SENT).write_bytes(count)
    assert Journal(tmp_path).unsent == 2


def test_a_line_that_cannot_be_read_is_skipped_without_losing_others(tmp_path: Path) -> None:
    journal_of(tmp_path, "1", "2", "3", "4", sent=3)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join([*lines[:3], b"\xff" * 30 + b"\n", *lines[4:]]))
    journal = Journal(tmp_path)
    assert (journal.damaged, journal.upload.sent, journal.unsent) == (1, 3, 1)
    journal.add("tags", {"values": {"n": "5"}})
    assert tags(tmp_path) == ["1", None, "3", "4", "5"]


def test_a_journal_can_be_read_wherever_it_was_cut_off(tmp_path: Path) -> None:
    """Cut at each byte, it has the complete lines and nothing else."""
    entries = journal_of(tmp_path, *"1234567").entries
    whole = (tmp_path / NAME).read_bytes()
    for size in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:size])
        journal = Journal(tmp_path)
        ends = (whole[:size] + b"\n")[1:].count(b"\n") - (whole[size] != 10)
        assert journal.entries[: max(ends - 1, 0)] == entries[: max(ends - 1, 0)]
        assert len(journal.entries) - journal.damaged == max(ends - 1, 0)


def test_a_journal_that_cannot_be_written_for_a_while_is_complete_afterwards(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, "1")
    (tmp_path / NAME).rename(tmp_path / "away")
    (tmp_path / NAME).mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        journal.add("tags", {"values": {"n": "2"}})
    journal.write_upload(Upload(sent=2))
    (tmp_path / NAME).rmdir()
    (tmp_path / "away").rename(tmp_path / NAME)
    assert Journal(tmp_path).unsent == 1  # the count is higher than its number of entries, so all are sent again
    journal.add("tags", {"values": {"n": "3"}})
    assert tags(tmp_path) == ["1", "2", "3"]
    assert Journal(tmp_path).unsent == 1


def test_the_journal_takes_less_than_a_millisecond_per_epoch(tmp_path: Path) -> None:
    journal = journal_of(tmp_path)
    values = {f"split/metric_{index}": 1.0 / 3 for index in range(10)}
    times = []
    for step in range(200):
        began = time.thread_time()
        journal.add("metrics", {"values": values, "step": step, "time": 1})
        times.append(time.thread_time() - began)
    assert sorted(times)[100] < 0.001


def test_a_line_that_did_not_fit_on_the_disk_leaves_no_part_of_itself(tmp_path: Path) -> None:
    """A follower that counts lines would count it twice."""
    journal = journal_of(tmp_path, "1")
    before = (tmp_path / NAME).stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 20, limit[1]))
    try:
        with pytest.raises(OSError, match=r"No space left|File too large"):
            journal.add("tags", {"values": {"n": "2"}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / NAME).stat().st_size == before
    assert not journal.is_written
    journal.add("tags", {"values": {"n": "3"}})
    assert (tags(tmp_path), Journal(tmp_path).damaged) == (["1", "2", "3"], 0)
