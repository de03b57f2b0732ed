"""Texts from other people, such as names in a run's files, cannot control the terminal or the layout of pages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_runs import MadeRun, make_run
from pipeline.command_line.command import say
from pipeline.commands.clean import main as clean
from pipeline.commands.compare import main as compare
from pipeline.commands.diff import main as diff
from pipeline.commands.runs import main as runs
from pipeline.commands.sync import main as sync
from pipeline.execute.facts import code, escaped, run_description
from pipeline.runs.summary import Summary
from stages.tables import aligned, markdown, plain_markdown
from tests.pipeline.experiments import Printed

HOSTILE = (
    "\x1b[2J\x1b[31m", "\x1b]8;;http://evil\x07link\x1b]8;;\x07", "\x9b31m", "\u202e\u2066", "a\rb", "a\nb",
    "\x00", "\x7f\x08", "\u200b\ufeff", "\u2028",
)  # fmt: skip
"""Escape sequences (also of one byte), links, right-to-left marks, line ends, and invisible characters."""

TEXT = "".join(HOSTILE)


def assert_plain(text: str) -> None:
    assert all(line.isprintable() for line in text.replace("\t", " ").split("\n")), ascii(text)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with such texts in all of their files, in folders with such names."""
    place = tmp_path_factory.mktemp("outputs")
    for number in "12":
        made = MadeRun({"seed": number, f"tracking.tags.{number}": TEXT, TEXT: number}, np.array([True, False] * 20))
        folder = place / "runs" / "made" / f"20260103-00000{number}-\x1b[31m\u202eb"
        make_run(folder, made)
        values = json.loads((folder / "summary.json").read_text())
        values |= {
            "name": TEXT,
            "run_id": f"\x1b[3{number}m{TEXT}",
            "error": TEXT,
            "facts": {**values["facts"], "note": TEXT},
        }
        values["metrics"] |= {f"test/{TEXT}": float(number), f"val/best_{TEXT}": 1.0}
        values["choices"] = {**values["choices"], "model": TEXT}
        values["versions"] = {TEXT: f"{TEXT}{number}"}
        (folder / "summary.json").write_text(json.dumps(values))
        (folder / "config.yaml").write_text(json.dumps({"a": f"{TEXT}{number}", "b": {TEXT: number}}))
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "step-1.npz").write_bytes(b"x")
    return place


def test_commands_print_no_control_characters(outputs: Path, tmp_path: Path, capsys: Printed) -> None:
    folders = [str(path.parent) for path in outputs.glob("runs/*/*/summary.json")]
    damaged = outputs / "runs" / "made" / "\x1b[41m"
    damaged.mkdir()
    (damaged / "summary.json").write_text('{"a": "\x1b[31m"')
    for command, words in (
        (runs, []), (compare, [*folders, f"--to={tmp_path}"]), (diff, folders), (clean, ["--older-than=0"]),
        (sync, folders), (runs, [f"status={TEXT}"]), (compare, [TEXT]), (diff, [TEXT, TEXT]), (runs, ["--json"]),
    ):  # fmt: skip
        command([f"--outputs={outputs}", *words])
        printed = capsys.readouterr()
        assert len(printed.out + printed.err) > 20, command
        assert_plain(printed.out)
        assert_plain(printed.err)
    for path in (tmp_path / "comparison.md", tmp_path / "comparison.html"):
        assert_plain(path.read_text())
    say(TEXT, f"{HOSTILE[0]}\nb")
    assert_plain(capsys.readouterr().out)


NAMES = (
    "a|b",
    "`code",
    "<script>x</script>",
    "[x](javascript:x)",
    "![](http://x)",
    "a\n| b |",
    "\\|",
    "a\\",
    TEXT,
    "<!--",
)


def test_tables_keep_their_columns_and_escape_markup() -> None:
    rows = [("name", "value"), *((name, name) for name in NAMES)]
    lines = markdown(rows).splitlines()
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, line
        assert not re.search(r"(?<!\\)(?:\\\\)*[`<\[]", line), line
        assert_plain(line)
    assert len(set(map(len, aligned(rows)))) == 1
    assert_plain("".join(aligned(rows)))
    for text in NAMES:
        for shown in (plain_markdown(text), escaped(text), code(text)):
            assert_plain(shown)
            assert "\n" not in shown
    assert [plain_markdown(text) for text in ("val_loss 0.5 ± 0.1", "*=", "f(x) > 0")] == [
        "val_loss 0.5 ± 0.1",
        "*=",
        "f(x) > 0",
    ]


def test_the_description_of_a_run_is_printable(tmp_path: Path) -> None:
    summary = Summary(TEXT, "FAILED", TEXT, tmp_path, {}, error=TEXT, exported={TEXT: str(tmp_path / TEXT)})
    assert_plain(run_description(summary, f"python {TEXT}", None, TEXT))
