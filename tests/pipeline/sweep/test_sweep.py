"""Sweeps: one process per job, a parent run, jobs that fail without ending the others, and the comparison."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from benchmarks.made_runs import MadeRun, make_sweep
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composed, Composer
from pipeline.commands import sync
from pipeline.commands.compare import main
from pipeline.comparison.report import notes, terminal_table
from pipeline.config.schemas import SweepSettings
from pipeline.console import Console
from pipeline.provenance.source_digest import Sources
from pipeline.runs.journal import Header, Journal, Upload
from pipeline.runs.summary import Summary
from pipeline.search.work import work_of
from pipeline.sweep.claim import to_resume
from pipeline.sweep.grid import Grid, checked_jobs
from pipeline.sweep.index import compare, latest, write_index
from pipeline.sweep.jobs import job_labels, slug
from pipeline.sweep.sweep import run_sweep
from pipeline.system.signals import until
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import BARE, LONG, QUICK, SMALL, TRAINED, Patch, Printed, experiment, sweep_runs

pytestmark = pytest.mark.slow

Command = Callable[..., subprocess.CompletedProcess[str]]


def test_four_jobs_over_strategy_and_precision(outputs: Path) -> None:
    axes = ["strategy=one_device,mirrored", "precision=float32,mixed"]
    given = ("-m", *axes, *SMALL, *BARE, "model.network.dropout=0", "seed=3", f"outputs={outputs}")
    done = commands.succeed(*given, cwd=outputs)
    folder = latest(outputs)
    comparison = compare(folder)
    places = [(strategy, precision) for strategy in ("one_device", "mirrored") for precision in ("float32", "mixed")]
    assert [[*row.settings.items()] for row in comparison.rows] == [
        [("strategy", strategy), ("precision", precision)] for strategy, precision in places
    ]
    assert {job.status for job in comparison.runs} == {"FINISHED"}
    summaries = [json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))]
    made = [(summary["replicas"], summary["precision"]) for summary in summaries]
    assert made == [(replicas, kind) for replicas in (1, 2) for kind in ("float32", "mixed_bfloat16")]
    losses = [summary["metrics"]["test/loss"] for summary in summaries]
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)  # two replicas equal one
    assert losses[0] != losses[1]
    parent, children = sweep_runs(outputs)
    assert [run.info.status for run in (parent, *children)] == ["FINISHED"] * 5
    assert parent.info.run_name == "strategy × precision, 4 jobs"
    assert [run.info.run_name for run in children] == [" ".join(row.settings.values()) for row in comparison.rows]
    wanted = {"strategy": "one_device, mirrored", "precision": "float32, mixed", "jobs": "4"}
    assert parent.data.params == wanted  # by which the table of runs tells sweeps apart, and sorts them
    best = next(iter(comparison.choice.rows))
    of_best = {name: best.mean(name) for name in ("val/best_loss", "test/accuracy")}
    assert {name: parent.data.metrics[name] for name in of_best} == of_best
    assert parent.data.metrics["failed"] == 0
    assert parent.data.metrics["speed_up"] > 0
    table = (folder / "comparison.md").read_text().partition("\n")[2].strip()
    assert parent.data.tags["mlflow.note.content"].startswith(table[:1000])
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    files = {entry.path for entry in client.list_artifacts(parent.info.run_id)}
    assert files == {f"comparison.{suffix}" for suffix in ("md", "csv", "html")}
    assert done.stdout.count("  FINISHED in ") == 4
    assert "epoch" not in done.stdout.partition("sweep 2")[2].partition("\nsweep ")[0]  # which is in each job's log
    assert all("epoch 2/2" in path.read_text() for path in folder.glob("*/pipeline.log"))


def log_of(outputs: Path, job: int) -> str:
    """Return the log of a job so far."""
    return "".join(path.read_text() for path in outputs.glob(f"sweeps/*/{job}_*/pipeline.log"))


def wait_for_log(outputs: Path, text: str, job: int = 1) -> None:
    """Wait until a job has logged `text`."""
    assert until(lambda: text in log_of(outputs, job), 200), f"job {job} has not logged: {text}"


def test_only_the_best_is_tested_exported_and_registered(outputs: Path) -> None:
    """This happens once, at the end. If it is interrupted, it is resumed, and nothing is trained again."""
    given = (
        "-m", "optimizer.learning_rate=1e-9,0.01", "sweep.finish=best", *SMALL, "pipeline.inspect=null",
        "export.register=own", f"outputs={outputs}",
    )  # fmt: skip
    done = commands.succeed(*given)
    assert "best job 2/2  optimizer.learning_rate=0.01  FINISHED" in done.stdout
    folder = latest(outputs)
    trained = [json.loads(path.read_text()) for path in sorted(folder.glob("[12]_*/summary.json"))]
    assert {summary["stages"][name]["status"] for summary in trained for name in ("evaluate", "export")} == {"skipped"}
    assert not any("is registered" in path.read_text() for path in folder.glob("[12]_*/pipeline.log"))
    first, second = compare(folder).rows
    assert first.mean("test/accuracy") is None
    final = json.loads((folder / "best_2" / "summary.json").read_text())
    assert second.mean("test/accuracy") == final["metrics"]["test/accuracy"]
    assert final["stages"]["train"]["status"] == "reused"
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    assert [version.run_id for version in client.search_model_versions("name='own'")] == [final["run_id"]]
    for path in (folder / "sweep.json", folder / "best_2" / "summary.json"):
        path.write_text(path.read_text().replace("FINISHED", "KILLED"))
    again = commands.succeed(*given)
    assert again.stdout.count("already finished, skipped") == 2
    assert "best job 2/2  optimizer.learning_rate=0.01  FINISHED" in again.stdout
    assert len(client.search_model_versions("name='own'")) == 1


def kill_itself(settings: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(settings: object) -> None:
    threading.Event().wait()


def stop_itself(settings: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def refuses(settings: object) -> None:
    raise UserError("the data is gone", "it to be there")


def asleep() -> Any:
    """Return a callback that makes epochs longer. A training that waits leaves the processor to other tests."""
    from keras.callbacks import LambdaCallback  # the sweep itself looks this function up, and needs no Keras

    return LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.3))


def test_a_job_that_is_killed_hangs_takes_too_long_or_fails_does_not_end_the_others(outputs: Path) -> None:
    """The fourth job saves a checkpoint when its time is over, and the last one reports its error."""
    loads = ("kill_itself", "hang", "stop_itself", "stages.load.synthetic.synthetic", "refuses")
    targets = ",".join(name if "." in name else f"{__name__}.{name}" for name in loads)
    limits = ("sweep.n_jobs=3", "hang_seconds=10", "job_timeout_seconds=15")
    callbacks = f"train.callbacks=[{{_target_: {__name__}.asleep}}]"
    done = commands.run("-m", f"data._target_={targets}", *limits, *LONG, callbacks, f"outputs={outputs}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert [job.status for job in compare(latest(outputs)).runs] == [*["FAILED"] * 3, "KILLED", "FAILED"]
    parent, children = sweep_runs(outputs)
    assert parent.info.status == "FAILED"
    assert sorted(run.info.status for run in children) == [*["FAILED"] * 4, "KILLED"]
    for said in (
        "it made no progress for 10 s",
        "its process made no progress for hang_seconds",
        "stopped by job_timeout_seconds=15",
        "exit code 124",
    ):
        assert said in done.stdout
    assert re.search(r"job 5/5 .* FAILED in .* s, exit code 1: the data is gone", done.stdout)
    assert "job 5 FAILED: the data is gone" in (latest(outputs) / "comparison.md").read_text()
    assert list(latest(outputs).glob("4_*/checkpoints/step-*.npz"))


def test_no_job_outlives_a_sweep_that_is_killed(outputs: Path) -> None:
    with commands.start("-m", "seed=1,2", *LONG, f"outputs={outputs}", stdout=subprocess.PIPE) as process:
        wait_for_log(outputs, "epoch    1/5000")
        process.kill()
        began = time.monotonic()
        process.stdout.read()  # ends when the last process that holds it has gone
        assert time.monotonic() - began < commands.HEARD_SECONDS
    assert Summary.read(next(outputs.glob("sweeps/*/1_*"))).status == "KILLED"
    assert sync.main([f"--outputs={outputs}"]) == 0
    _, [job] = sweep_runs(outputs)
    assert job.info.status == "KILLED"


def test_a_signal_while_the_sweep_is_started_leaves_no_running_run(outputs: Path, monkeypatch: Patch) -> None:
    real = Tracker.begin

    def interrupted(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(*given)

    monkeypatch.setattr(Tracker, "begin", interrupted)
    seeds = {f"seed={seed}": experiment(f"seed={seed}", outputs=outputs) for seed in (1, 2)}
    composed = [Composed(given.document, given.choices, (seed,)) for seed, given in seeds.items()]
    assert run_sweep(Grid(checked_jobs(composed, 2), SweepSettings()), Console()).code == 130
    assert sweep_runs(outputs)[0].info.status == "KILLED"
    assert [job.status for job in compare(latest(outputs)).runs] == ["NOT RUN", "NOT RUN"]


def test_a_stopped_sweep_resumes(outputs: Path) -> None:
    """It is stopped in its second job. The same command resumes it, and would start a new sweep after that."""
    given = ["-m", "seed=1,2", *QUICK, *TRAINED, "train.epochs=8", f"outputs={outputs}"]
    with commands.start(*given, stdout=subprocess.PIPE) as process:
        wait_for_log(outputs, "epoch 1/8", job=2)
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait(300) == 130
    assert "Traceback" not in printed
    parent, children = sweep_runs(outputs)
    assert [run.info.status for run in (parent, *children)] == ["KILLED", "FINISHED", "KILLED"]
    assert "resume      python -m pipeline -m seed=1,2" in printed
    first = compare(latest(outputs))
    assert [job.status for job in first.runs] == ["FINISHED", "KILLED"]
    done = commands.succeed(*given)
    assert "resuming sweep " in done.stdout
    assert "job 1/2  seed=1  already finished, skipped" in done.stdout
    assert "resuming training after step" in log_of(outputs, job=2)
    assert [path.name for path in (outputs / "sweeps").iterdir()] == [first.title.removeprefix("sweep ")]
    parent, children = sweep_runs(outputs)
    assert {run.info.status for run in [parent, *children]} == {"FINISHED"}
    assert len(children) == 2
    assert [job.status for job in compare(latest(outputs)).runs] == ["FINISHED"] * 2
    composer = Composer(read_arguments(given))
    assert to_resume(work_of(composer), print) is None


def work(outputs: Path, identity: str, sources: Sources, *given: str) -> Any:
    """Return the parts of `Work` that `to_resume` reads."""
    first, settings = experiment(*given, outputs=outputs), SweepSettings()
    facts = {"kind": "sweep", "unit": "job", "identity": identity, "sources": sources, "total": 1}
    return SimpleNamespace(experiments=[first], settings=settings, **facts)


def test_a_sweep_with_other_code_is_not_resumed_and_the_reason_is_printed(tmp_path: Path, capsys: Printed) -> None:
    folder = tmp_path / "sweeps" / "20260101-000000-aaaaaaaa"
    folder.mkdir(parents=True)
    (damaged := folder.with_name("20270101-000000-bbbbbbbb")).mkdir()
    before, after = Sources({"net.py": "1"}), Sources({"net.py": "2"})
    before.write(folder)
    write_index([], folder, facts={"identity": "x", "code": before.digest})
    for text in ("[]", "{"):
        (damaged / "sweep.json").write_text(text)
        assert to_resume(work(tmp_path, "x", before), print) == folder
        assert "this sweep is skipped" in capsys.readouterr().out
    assert to_resume(work(tmp_path, "x", after), print) is None
    assert "the code has changed since 20260101-000000-aaaaaaaa was stopped (net.py)" in capsys.readouterr().out
    assert to_resume(work(tmp_path, "y", before), print) is None
    assert to_resume(work(tmp_path, "x", after, f"resume={folder.name}"), print) == folder
    with pytest.raises(UserError, match="is not a sweep with these jobs"):
        to_resume(work(tmp_path, "y", before, f"resume={folder.name}"), print)


def test_a_finished_sweep_is_resumed_if_its_upload_is_incomplete(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / "20260101-000000-aaaaaaaa"
    (folder / "1_seed=1").mkdir(parents=True)
    same = Sources({})
    jobs = [{"folder": "1_seed=1", "overrides": []}]
    write_index(jobs, folder, "FINISHED", {"identity": "x", "code": same.digest})
    assert to_resume(work(tmp_path, "x", same), print) is None
    journal = Journal(folder / "1_seed=1")
    journal.begin(Header(run_id="1"))
    journal.add("status", {"status": "FINISHED", "time": 1})
    journal.flush()
    assert to_resume(work(tmp_path, "x", same), print) == folder
    assert to_resume(work(tmp_path, "x", same, "tracking=off"), print) is None
    journal.write_upload(Upload(sent=1))
    journal.flush()
    assert to_resume(work(tmp_path, "x", same), print) is None


def test_a_dry_sweep_shows_every_plan(pipeline_command: Command, tmp_path: Path) -> None:
    words = ("-m", "strategy=one_device,mirrored", "dry_run=true", f"outputs={tmp_path}/outputs")
    done = pipeline_command(*words, trains=False)
    assert (done.returncode, done.stdout.count("-> trained")) == (0, 2)
    assert not list((tmp_path / "outputs").glob("*"))


@pytest.mark.smoke
def test_labels_name_what_differs() -> None:
    jobs = [["strategy=a", "seed=1", "train.epochs=2"], ["strategy=b", "seed=1", "train.epochs=2"]]
    assert job_labels(jobs) == ["strategy=a", "strategy=b"]
    assert slug("strategy.devices=[/cpu:0,/cpu:1] seed=1") == "strategy.devices=_cpu_0,_cpu_1_,seed=1"
    assert slug("x" + "日" * 100) == "x" + "日" * 33, "a file system counts bytes"


@pytest.mark.smoke
def test_the_status_of_each_job_is_shown(tmp_path: Path) -> None:
    made = MadeRun({"strategy": "[/cpu:0]"}, np.ones(20, bool))
    lost = [{"folder": str(code), "overrides": [f"strategy={code}"], "exit_code": code} for code in (2, 137, None)]
    lost[0]["reason"] = "no TPU here"
    folder = make_sweep(tmp_path / "s", [made], lost)
    (folder / "137").mkdir()
    (folder / "137" / "summary.json").write_text(json.dumps({"status": "RUNNING"}))
    comparison = compare(folder)
    assert [job.status for job in comparison.runs] == ["FINISHED", "REFUSED", "DIED", "NOT RUN"]
    Console().table(terminal_table(comparison))  # brackets are no markup
    assert "job 2 REFUSED: no TPU here" in notes(comparison)
    assert main([str(folder)]) == 0
