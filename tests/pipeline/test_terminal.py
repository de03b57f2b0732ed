"""The output of commands fits a terminal of 80 columns."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_runs import MadeRun, make_sweep
from pipeline.comparison.report import write
from pipeline.console import Console
from pipeline.sweep.index import compare
from tests.conftest import ROOT
from tests.pipeline.experiments import SMALL


def test_text_is_wrapped_between_words_and_an_address_is_not_divided(capsys: pytest.CaptureFixture[str]) -> None:
    address = "http://127.0.0.1:5000/#/experiments/1/runs/" + 40 * "d"
    Console().wrapped(f"see {address}: {'a word, ' * 30}", "time")
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "time        see"
    assert f"            {address}:" in lines
    assert all(len(line) <= 80 for line in lines if address not in line)
    assert all(line.startswith(" " * 12) for line in lines)


def on_terminal(folder: Path, *words: str) -> list[str]:
    """Return the lines that a command prints on a terminal of 80 columns without colors, in `folder`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    variables |= {"NO_COLOR": "1", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(command, cwd=folder, env=variables, stdout=theirs, timeout=60, check=False)
    assert done.returncode in (0, 1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        return re.sub(r"\x1b\[[01]m", "", file.read1(1 << 16).decode()).splitlines()  # bold is not a color


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs" / "sweeps" / "20261101-101500-4d9eb298"
    rates = {"0.1": 0.9, "0.01": 0.8}
    all_correct = np.ones(20, bool)
    made = [MadeRun({"optimizer.learning_rate": rate}, all_correct, 10 / loss, loss) for rate, loss in rates.items()]
    make_sweep(folder, made)
    write(compare(folder), folder)
    return folder


def test_the_table_of_runs_shows_the_best_result_of_a_sweep(sweep: Path, tmp_path: Path) -> None:
    lines = on_terminal(tmp_path, "runs")
    assert (max(map(len, lines)) <= 80, "\x1b" in "".join(lines)) == (True, False)
    [own] = [line for line in lines if "sweep of" in line]
    jobs = [line for line in lines if "└" in line]
    assert [line.split("└ ")[1].split()[0] for line in jobs] == ["lr=0.1", "lr=0.01"]
    assert ["0.8" in line for line in (own, jobs[1])] == [True, True]


def test_the_diff_of_two_runs_has_each_setting_once_and_measurements_separately(sweep: Path, tmp_path: Path) -> None:
    jobs = sorted(path.parent for path in sweep.glob("*/summary.json"))
    for job, rate in zip(jobs, (0.1, 0.01), strict=True):
        (job / "config.yaml").write_text(f"optimizer: {{rate: {rate}}}\ntrain: {{optimizer: {{rate: {rate}}}}}\n")
    lines = on_terminal(tmp_path, "diff", *(str(job.relative_to(tmp_path)) for job in jobs))
    assert sum("0.01" in line and "rate" in line for line in lines[2:]) == 1
    starts = [line.split()[0] if line else "" for line in lines]
    metrics, measured = starts.index("metrics"), starts.index("measurements")
    assert any("val/best_loss" in line for line in lines[metrics:measured])
    assert any("per_second" in line for line in lines[measured:])
    assert not any("second" in line for line in lines[metrics:measured])


def test_ctrl_c_before_the_run_has_begun_ends_quickly_shows_the_cursor_and_leaves_nothing(tmp_path: Path) -> None:
    """TensorFlow's import takes seconds, and reaches no safe place."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pipeline", *SMALL, f"outputs={tmp_path}"]
    variables = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while b"starting TensorFlow" not in printed:
            printed += os.read(ours, 1 << 16)
        assert b"\x1b[?25l" in printed  # the cursor is hidden
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        with suppress(OSError):  # the end of a terminal
            while more := os.read(ours, 1 << 16):
                printed += more
        assert process.wait(10) == 128 + signal.SIGINT
        assert time.monotonic() - began < 2
    os.close(ours)
    assert printed.rindex(b"\x1b[?25h") > printed.rindex(b"\x1b[?25l")
    assert b"Traceback" not in printed
    assert not [*tmp_path.glob("runs/*/*")]
