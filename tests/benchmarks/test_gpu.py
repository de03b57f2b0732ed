"""The check of a GPU: its report, its comparisons, and a small check of everything on the CPU."""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.__main__ import names_of
from benchmarks.gpu.answering import Answerer, Budget, Failed, OutOfTime
from benchmarks.gpu.laws import largest_difference
from benchmarks.gpu.plan import FULL, PRECISIONS, TINY, TOLERANCES
from benchmarks.gpu.report import LAWS, Report, Skipped, shown
from benchmarks.gpu.speeds import Chosen, summarized
from tests.conftest import ROOT

FACTS = {"machine": {"gpus": [], "usable_cores": 2, "processor": "a processor"}, "versions": {"keras": "3"}}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path, Budget(60), FACTS, ["a note"])


def rows(folder: Path) -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads((folder / "gpu.json").read_text())
    return list(document["rows"])


def law(report: Report, value: float | Exception, status: str = "ok") -> None:
    with report.row(LAWS, "a law") as row:
        if isinstance(value, Exception):
            raise value
        row.values["value"] = value
        row.status = status


def test_each_row_is_written_when_it_is_measured(report: Report, tmp_path: Path) -> None:
    assert rows(tmp_path) == []
    law(report, 1.5)
    assert [row["values"]["value"] for row in rows(tmp_path)] == [1.5]
    assert "| a law |  | 1.5 |  | ok |" in (tmp_path / "gpu.md").read_text()
    law(report, 2.5)
    assert [row["values"]["value"] for row in rows(tmp_path)] == [1.5, 2.5]
    assert "has not finished" in (tmp_path / "gpu.md").read_text()
    assert report.finish() == 0
    text = (tmp_path / "gpu.md").read_text()
    assert "has not finished" not in text
    assert "a note\n\nno GPU, 2 cores of a processor, keras 3" in text
    assert not list(tmp_path.glob(".partial*"))


@pytest.mark.parametrize(
    ("error", "result", "code"),
    [
        (ValueError("\nno such layer\nat line 3"), "error: ValueError: no such layer", 1),
        (Failed("exit code -11"), "error: exit code -11", 1),
        (OutOfTime(), "not measured: out of time", 0),
        (Skipped("no GPU"), "skipped: no GPU", 0),
    ],
)
def test_a_row_that_cannot_be_measured_says_why_and_the_check_goes_on(
    report: Report, tmp_path: Path, error: Exception, result: str, code: int
) -> None:
    law(report, error)
    law(report, 1.0)
    assert [row["status"] for row in rows(tmp_path)] == [result.partition(":")[0], "ok"]
    assert f"| {result} |" in (tmp_path / "gpu.md").read_text()
    assert report.finish() == code


def test_a_network_that_is_left_out_is_a_line_without_a_table(report: Report, tmp_path: Path) -> None:
    report.skip("mobilenet_v2", "all precisions", "too slow")
    assert "\n\n`mobilenet_v2`: skipped: too slow\n" in (tmp_path / "gpu.md").read_text()


def test_a_law_that_fails_is_the_exit_code_but_a_speed_that_fails_is_not(report: Report) -> None:
    with report.row("cnn", "float32"):
        raise Failed("no memory")
    assert report.finish() == 0
    law(report, 1.0, "failed")
    assert report.finish() == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3, "3"), (12345.6, "12,346"), (0.123456, "0.123"), (1.5e-7, "1.5e-07"), ("n/a", "n/a")],
)
def test_numbers_have_three_digits(value: object, text: str) -> None:
    assert shown(value) == text


WRITER = """
import sys
from pathlib import Path
from benchmarks.gpu.answering import Budget
from benchmarks.gpu.report import LAWS, Report
report = Report(Path(sys.argv[1]), Budget(60), {})
number = 0
while True:
    number += 1
    with report.row(LAWS, f"law {number}") as row:
        row.values["value"] = "x" * 1000
"""


def test_a_killed_check_keeps_its_rows(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    with writer:
        assert writer.stdout is not None
        for _ in range(30):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.stdout.read()
    names = [row["name"] for row in rows(tmp_path)]
    assert names == [f"law {number + 1}" for number in range(len(names))]
    assert len(names) >= 30
    assert "law 30" in (tmp_path / "gpu.md").read_text()


ANSWERING = """
import os, time
from benchmarks.gpu.answering import answer_requests
def add(a, b):
    print("noise")
    return a + b
answer_requests({"add": add, "die": lambda: os._exit(3), "sleep": lambda: time.sleep(600), "pid": os.getpid})
"""


@pytest.fixture
def answerer(tmp_path: Path) -> Iterator[Answerer]:
    process = Answerer((sys.executable, "-c", ANSWERING), tmp_path / "log", Budget(60))
    yield process
    process.close()


def test_a_process_answers_with_results_and_errors_and_starts_again_when_it_dies(answerer: Answerer) -> None:
    assert answerer.ask("add", a=1, b=2) == 3
    with pytest.raises(Failed, match=r"TypeError: .* missing"):
        answerer.ask("add", a=1)
    first = answerer.ask("pid")
    with pytest.raises(Failed, match="exit code 3"):
        answerer.ask("die")
    assert answerer.ask("pid") != first


def test_a_process_that_does_not_answer_in_time_is_ended(answerer: Answerer) -> None:
    assert answerer.ask("add", a=1, b=2) == 3
    process = answerer._process
    assert process is not None
    answerer._budget.seconds = answerer._budget.used + 0.1
    with pytest.raises(OutOfTime):
        answerer.ask("sleep")
    assert process.poll() == -signal.SIGKILL


class Worker(Answerer):
    """Answers without a process; a batch of more than 16 does not fit."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, name: str, **arguments: Any) -> Any:
        self.asked.append(name)
        if name == "choose":
            self.batch = arguments["network"]["batch"]
        elif self.batch > 16:
            raise Failed("ResourceExhaustedError: OOM when allocating tensor")
        return {"seconds_per_step": 1.0}


def test_a_batch_that_does_not_fit_is_halved() -> None:
    network = next(iter(FULL.rows))
    chosen = Chosen(Worker(), network, PRECISIONS[0], jit=False)
    chosen.warm_up("ours")
    assert (network.batch, chosen.network.batch) == (128, 16)
    worker = Worker()
    with pytest.raises(Failed, match="ResourceExhausted"):
        Chosen(worker, network, PRECISIONS[0], jit=False).warm_up("keras")
    assert worker.asked == ["choose", "warm_up"]


def test_speeds_are_medians_and_ratios_are_above_one_where_this_project_is_faster() -> None:
    samples = {
        "ours": {"step": [0.1, 0.2, 0.3], "waited": [0.0, 0.25, 0.5]},
        "keras": {"step": [0.2, 0.4, 0.9]},
    }
    assert summarized(samples, 10) == {
        "images_per_second": 50.0,
        "milliseconds": 200.0,
        "input_wait": "25%",
        "keras_images_per_second": 25.0,
        "against_keras": 2.0,
    }


def test_only_names_parts_and_groups_of_the_check() -> None:
    assert names_of("cnn,overflow") == {"cnn", "overflow"}
    assert names_of("speeds") == set(FULL.networks) == set(TINY.networks)
    assert {"resumed", "weights"} < names_of("laws")
    with pytest.raises(argparse.ArgumentTypeError, match=r"cnnn is not a part of the check\. Expected any of: laws"):
        names_of("cnnn")


def test_every_precision_has_a_tolerance_with_its_reason() -> None:
    assert set(TOLERANCES) == set(PRECISIONS)
    assert all(tolerance.reason for tolerance in TOLERANCES.values())
    page = (ROOT / "docs" / "how-it-works" / "gpu.md").read_text()
    for precision, tolerance in TOLERANCES.items():
        assert f"| {precision.name} | {tolerance.value:g} | {tolerance.reason} |" in page


@pytest.mark.engines
def test_a_small_check_of_everything_on_the_cpu(tmp_path: Path) -> None:
    """And a weight that is changed after the run was resumed is found."""
    command = [sys.executable, "-m", "benchmarks.gpu", str(tmp_path), "--tiny", "--seconds", "1800"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["finished"]
    assert {"machine", "versions", "commit", "command"} <= document.keys()
    found = {(row["section"], row["name"]): row for row in document["rows"]}
    results = {key: row["status"] for key, row in found.items()}
    assert {results.pop((name, "all precisions")) for name in TINY.left_out} == {"skipped"}
    assert set(results.values()) == {"ok"}, results
    speeds = [row["values"] for row in document["rows"] if row["section"] in ("cnn", "resnet20")]
    assert [speed["precision"] for speed in speeds] == [
        *["float32, TF32 off"] * 2, *["mixed_bfloat16"] * 2, "float32, TF32 off",
    ]  # fmt: skip
    assert all(speed["images_per_second"] > 0 and speed["against_keras"] > 0 for speed in speeds)
    assert found[LAWS, "killed and resumed: equal weights"]["values"]["resumed_from_step"] == 12
    text = (tmp_path / "gpu.md").read_text()
    assert "TensorFlow found no GPU" in text
    assert len(re.findall(r"^\| (?:float32, TF32 off|mixed_bfloat16) \|", text, re.MULTILINE)) == len(speeds)

    first, killed = tmp_path / "runs" / "first", tmp_path / "runs" / "killed"
    assert largest_difference(first, killed) == 0
    changed = shutil.copytree(killed, tmp_path / "changed")
    [path] = changed.rglob("checkpoints/step-*.npz")
    with np.load(path) as file:
        arrays = dict(file)
    name = next(name for name in arrays if name.startswith("model."))
    arrays[name].flat[0] = np.nextafter(arrays[name].flat[0], np.float32(9))
    with path.open("wb") as out:
        np.savez(out, **arrays)
    assert 0 < largest_difference(first, changed) < 1e-6


def test_a_slow_row_does_not_use_up_the_budget() -> None:
    budget = Budget(1000)
    with pytest.raises(OutOfTime), budget.row(0.0):
        budget.need()
    budget.need()
