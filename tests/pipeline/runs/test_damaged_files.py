"""A damaged file of a run is reported in one line and skipped; no command waits for a file that is not regular."""

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from omegaconf import OmegaConf

from pipeline.command_line.arguments import read_arguments
from pipeline.commands import clean, compare, diff, predict, runs, sync
from pipeline.console import Console
from pipeline.decide.decision import decide
from pipeline.decide.inherited import inherit_overrides
from pipeline.decide.job import Job
from pipeline.execute.claim import claimed
from pipeline.execute.facts import run_facts
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import sources
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import Header, Journal
from pipeline.sweep.index import INDEX, read_index, write_index
from pipeline.sweep.select import record_of
from stages.errors import UserError
from stages.storage.atomic import remove
from tests.pipeline.experiments import SMALL, Printed, experiment, write_run

WORDS = (*SMALL, "tracking=off")
NAME = "20260101-000000-aaaaaaaa"
DEEP = 100_000 * "[" + 100_000 * "]"


def whole() -> dict[str, Any]:
    return {
        "run_id": "abcdef12", "status": "KILLED", "name": "synthetic_mlp", "folder": "x", "choices": {"model": "mlp"},
        "overrides": ["seed=1"], "stages": {"load": {"status": "ran", "seconds": 1.0}},
        "metrics": {"val/best_loss": 0.5, "test/accuracy": 0.9}, "weights": {"epoch": 1, "monitor": "val_loss"},
        "facts": {"task": {"primary": "accuracy", "metrics": ["accuracy"], "higher_is_better": ["accuracy"]}},
    }  # fmt: skip


FIELDS: dict[str, tuple[Any, ...]] = {
    "run_id": (5, []), "status": (5, None, [], "DONE"), "name": (None, {}), "choices": (None, [], {"model": 5}),
    "overrides": (None, "seed=1", [5], {}),
    "stages": (None, [], {"a": []}, {"a": {"status": 5}}, {"a": {"status": "ran", "seconds": "1"}}, {"a": {"x": 1}}),
    "metrics": (None, [], "x", {"val/best_loss": "0.5"}, {"val/best_loss": []}, {"val/best_loss": 10**400}),
    "seconds": ("1", None, True, 10**400), "weights": ([], 5, {"monitor": 5}, {"epoch": "last"}),
    "facts": (
        None, [], {"task": []}, {"task": {"primary": []}}, {"task": {"metrics": 5}}, {"custom_metrics": []},
        {"intervals": 5}, {"seed": "1"}, {"verdicts": "x"},
        {"data": {"train_examples": "x"}}, {"pruned_after_epoch": "x"}, {"fingerprint": {}},
    ),
    "unknown": (1,), "error": ([],), "resumed_from_step": ("1", 1.5), "versions": ([],), "exported": ({"a": 1},),
}  # fmt: skip
"""Fields of a summary with values of other types."""

CONTENTS: dict[str, bytes | Callable[[Path], object]] = {
    "empty": b"", "truncated": b'{"run_id": "a', "invalid UTF-8": b'{"run_id": "\xff\xfe"}', "a list": b"[[1, 2]]",
    "null": b"null", "deep nesting": DEEP.encode(), "many digits": b'{"seconds": ' + 5000 * b"9" + b"}",
    "no metrics": json.dumps({**whole(), "metrics": None}).encode(), "a folder": Path.mkdir, "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}  # fmt: skip
"""Replacements for a file: bytes, or a function that creates something else at its path."""

READERS = ("runs", "compare", "diff", "clean", "resume", "plain")
FILES = {
    **dict.fromkeys(("config.yaml", "code.json", "tracking.jsonl", "tracking.sent", "tracking.lock"), READERS),
    **dict.fromkeys((".lock", "pipeline.log"), READERS),
    "predictions.parquet": ("compare it", "against"), "checkpoints/step-00000001.npz": ("fork", "resume"),
    "results/train/trained.npz": ("evaluate",), "export/saved_model/saved_model.pb": ("predict",),
}  # fmt: skip
"""Files of a run other than its summary, with the commands that use them before TensorFlow starts."""


def put(path: Path, content: bytes | Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with an intact run, an intact sweep, and a run to damage, whose settings are WORDS."""
    outputs = tmp_path_factory.mktemp("damaged") / "outputs"
    made = experiment(*WORDS, outputs=outputs)
    facts = {"identity": identity(made), "code": sources(made).digest, "overrides": list(WORDS)}
    for name, status in (("20250101-000000-bbbbbbbb", "FINISHED"), (NAME, "KILLED")):
        folder = write_run(
            outputs / "runs" / "synthetic_mlp" / name, status, name[-8:], metrics={"test/accuracy": 0.5}, **facts
        )
        OmegaConf.save(made.document, folder / "config.yaml")
        journal = Journal(folder)
        journal.begin(Header(experiment="synthetic_mlp", name=name))
        journal.add("metrics", {"values": {"train/loss": 0.5}, "step": 1, "time": 1})
        sources(made).write(folder)
        for place in (
            "checkpoints/step-00000001.npz",
            "results/train/trained.npz",
            "export/saved_model/saved_model.pb",
        ):
            (folder / place).parent.mkdir(parents=True)
            (folder / place).write_text("x")
        for place in ("pipeline.log", ".lock", "tracking.sent", "tracking.lock", "predictions.parquet"):
            (folder / place).write_text("1")
    sweep = outputs / "sweeps" / "20240101-000000-cccccccc"
    write_run(sweep / "1_seed=1", "FINISHED", "cccccccc", metrics={"test/accuracy": 0.5})
    for place in ("1_seed=1/predictions.parquet", ".lock", "tracking.jsonl"):
        (sweep / place).write_text("")
    write_index([{"folder": "1_seed=1", "overrides": ["seed=1"], "number": 1}], sweep)
    (sweep / "comparison.csv").write_text("best,test/accuracy\ntrue,0.5\n")
    return outputs


@pytest.fixture
def outputs(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "outputs"))


def begin(outputs: Path, *words: str) -> None:
    """Do what a command does before TensorFlow is imported."""
    given = (*WORDS, f"outputs={outputs}", *words)
    arguments = inherit_overrides(read_arguments(given))
    made = experiment(*arguments.overrides, *arguments.inherited)
    decision = decide(Job(made))
    decision.notes.show(Console())
    with claimed(decision):
        pass


def commands_on(outputs: Path, run: str) -> dict[str, Callable[[], object]]:
    """Return commands that a user may type while a run is damaged, some of them on that run."""
    given = ["--outputs", str(outputs)]
    whole = str(outputs / "runs" / "synthetic_mlp" / "20250101-000000-bbbbbbbb")
    return {
        "runs": lambda: runs.main(given), "runs --json": lambda: runs.main([*given, "--json"]),
        "runs by metric": lambda: runs.main([*given, "test/accuracy>0.1"]),
        "compare": lambda: compare.main([*given, "model=mlp"]), "compare a sweep": lambda: compare.main(given),
        "compare it": lambda: compare.main([*given, run]),
        "diff": lambda: diff.main([*given, run, whole]), "diff others": lambda: diff.main([*given, whole, whole]),
        "clean": lambda: clean.main([*given, "--older-than", "0", "--unfinished", "--dry-run"]),
        "predict": lambda: predict.main([*given, run, "x.png"]),
        "predict another": lambda: predict.main([*given, "a0b0", "x"]),
        "fork": lambda: begin(outputs, f"fork={run}"), "resume": lambda: begin(outputs, f"resume={run}"),
        "evaluate": lambda: begin(outputs, "from=evaluate", f"run={run}"),
        "against": lambda: begin(outputs, f"evaluate.against={run}"), "plain": lambda: begin(outputs),
    }  # fmt: skip


def ends_well(command: Callable[[], object], printed: Printed) -> str:
    """Run a command, which must end soon with an exit code or a UserError; return its output."""
    signal.alarm(20)  # its handler raises; a command that reads a FIFO would wait forever
    error = None
    try:
        code = command()
    except (UserError, OSError) as refused:  # a command prints it in one line
        error, code = refused, 2
    finally:
        signal.alarm(0)
    output = printed.readouterr()
    text = f"{output.out}{output.err}{error or ''}"
    assert "Traceback" not in text, text
    assert code in (None, 0, 1, 2), text
    return text


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def late(*_: object) -> NoReturn:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("field", FIELDS)
def test_a_summary_with_a_wrong_type_cannot_be_read(field: str, tmp_path: Path) -> None:
    for value in FIELDS[field]:
        (tmp_path / "summary.json").write_text(json.dumps({**whole(), field: value}))
        lines: list[str] = []
        assert RunFolder(tmp_path).read(lines.append) is None, value
        [line] = lines
        assert line.isprintable()
        assert field in line or "its status" in line, line
    facts = {
        "intervals": {"test/rmse": [0.5, None], "test/r2": None},
        "confidence": 0.95,
        "own": {},
        "task": None,
        "val_loss": None,
    }
    whole_too = {
        "metrics": {"a": None, "b": 1, "c": math.nan},
        "facts": facts,
        "weights": {"epoch": 2, "monitor": None},
    }
    (tmp_path / "summary.json").write_text(json.dumps({**whole(), **whole_too}))
    run = RunFolder(tmp_path).read()
    assert run is not None
    assert run_facts(run)
    assert record_of(run).validation is None


@pytest.mark.parametrize("content", CONTENTS)
def test_a_damaged_summary_is_reported_and_skipped(content: str, outputs: Path, capsys: Printed) -> None:
    folder = outputs / "runs" / "synthetic_mlp" / NAME
    put(folder / "summary.json", CONTENTS[content])
    output = {name: ends_well(command, capsys) for name, command in commands_on(outputs, str(folder)).items()}
    named = "summary.json cannot be read"
    for name in ("runs", "runs --json", "runs by metric", "compare", "plain"):
        assert output[name].count(named) == 1, (name, output[name])
    for name in ("compare it", "diff", "predict", "fork", "resume", "evaluate", "against"):
        assert named in output[name] or "matches no run" in output[name], (name, output[name])


@pytest.mark.parametrize("content", ["a list", "deep nesting", "invalid UTF-8", "a FIFO"])
def test_no_other_damaged_file_of_a_run_breaks_a_command(content: str, outputs: Path, capsys: Printed) -> None:
    for place in [*FILES][:3] if isinstance(CONTENTS[content], bytes) else FILES:
        folder = outputs / "runs" / "synthetic_mlp" / NAME
        kept = (folder / place).read_bytes()
        put(folder / place, CONTENTS[content])
        typed = commands_on(outputs, str(folder))
        for name in FILES[place]:
            assert ends_well(typed[name], capsys) or name == "plain", (place, name)
        remove(folder / place)
        (folder / place).write_bytes(kept)


@pytest.mark.parametrize("content", CONTENTS)
def test_no_damaged_file_of_a_sweep_breaks_a_command(content: str, outputs: Path, capsys: Printed) -> None:
    [sweep] = outputs.glob("sweeps/*")
    for place in (
        INDEX,
        "comparison.csv",
        ".lock",
        "tracking.jsonl",
        "1_seed=1/summary.json",
        "1_seed=1/predictions.parquet",
    ):
        kept = (sweep / place).read_bytes()
        put(sweep / place, CONTENTS[content])
        for name, command in commands_on(outputs, str(sweep)).items():
            if name.startswith(("runs", "compare")):
                output = ends_well(command, capsys)
                assert place != INDEX or "compare" in name or "sweep.json cannot be read" in output, output
        remove(sweep / place)
        (sweep / place).write_bytes(kept)


@pytest.mark.parametrize(
    "job", [{"folder": 5}, {"folder": None}, {"overrides": "a"}, {"exit_code": "1"}, {"number": []}]
)
def test_a_job_with_a_wrong_type_is_an_error_in_the_index(job: dict[str, Any], tmp_path: Path) -> None:
    index = {"status": "FINISHED", "jobs": [{"folder": "1", "overrides": [], **job}]}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"sweep\.json cannot be read"):
        read_index(tmp_path)


LINES: tuple[Any, ...] = (
    {"call": "metrics", "given": {}}, {"call": "metrics", "given": []}, {"call": "metrics", "given": {"values": []}},
    {"call": "metrics", "given": {"values": {"a": "x"}, "step": 1, "time": 1}}, {"call": [], "given": {}},
    {"call": "metrics", "given": {"values": {"a": 1.0}, "step": "1", "time": 1}}, {"call": "close", "given": {}},
    {"call": "status", "given": {"status": 5, "time": 1}}, {"call": "status", "given": {"status": "FAILED"}},
    {"call": "tags", "given": {"values": {"a": None}}}, {"store": []}, {"store": {"run_id": 5}}, [], None, 5,
)  # fmt: skip


def test_a_line_with_a_wrong_type_is_a_damaged_line_of_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin(Header(run_id="a"))
    with (tmp_path / "tracking.jsonl").open("a") as file:
        file.writelines(f"\n{json.dumps(line)}" for line in LINES)
    journal.add("metrics", {"values": {"train/loss": math.inf}, "step": 1, "time": 1})
    (tmp_path / "tracking.sent").write_text("1e999")
    again = Journal(tmp_path)
    assert (again.damaged, again.upload.sent, again.run_id, again.status) == (len(LINES), 0, "a", None)
    assert RunFolder(tmp_path).epochs() == {1: {"train/loss": math.inf}}


def test_special_files_are_rejected_without_waiting(outputs: Path, migrated_store: Path, capsys: Printed) -> None:
    shutil.copy(migrated_store, outputs / "mlflow.db")
    folder = outputs / "runs" / "synthetic_mlp" / NAME
    journal = Journal(folder)
    for number, content in enumerate(("a FIFO", "a device")):
        put(folder / f"plot{number}", CONTENTS[content])
        journal.add("artifact", {"path": f"plot{number}", "folder": ""})
    (folder / "plots").mkdir()
    put(folder / "plots" / "pipe", CONTENTS["a FIFO"])
    journal.add("artifact", {"path": "plots", "folder": ""})
    output = ends_well(lambda: sync.main(["--outputs", str(outputs), str(folder)]), capsys)
    assert output.count("tracking: rejected artifact") == 3, output
    assert Journal(folder).unsent == 0
