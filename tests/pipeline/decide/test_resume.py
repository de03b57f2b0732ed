"""The run that a command resumes: the interrupted run of the same experiment, or the one that the user names."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.console import Console
from pipeline.decide.decision import Decision, New, Resume, decide
from pipeline.decide.job import Job
from pipeline.execute.claim import claimed
from pipeline.execute.records import begin
from pipeline.exit_codes import FAILED
from pipeline.launch.run import run_job
from pipeline.paths import new_folder_name
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.lock import locked
from pipeline.runs.summary import Summary
from pipeline.sweep.index import write_index
from pipeline.sweep.select import read_all
from pipeline.tracking.pending import end_lost
from stages.errors import UserError
from tests import commands
from tests.conftest import outputs_in
from tests.pipeline.decide.test_inherited import all_overrides
from tests.pipeline.experiments import (
    SMALL,
    TRAINED,
    Patch,
    Printed,
    experiment,
    last,
    only_run,
    ran,
    tracked,
    write_run,
)

pytestmark = pytest.mark.slow

LONG = (
    "strategy=mirrored", "train.epochs=4000", "train.early_stopping_patience=1", "train.steps_per_call=1",
    "model.network.filters=[8,16]", "pipeline.inspect=null",
)  # fmt: skip
SHORT = (*SMALL, *TRAINED)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, migrated_store: Path) -> Path:
    """The outputs of a run that Ctrl-C has stopped after at least one epoch; the last of its tests resumes it."""
    outputs = outputs_in(tmp_path_factory.mktemp("killed"), migrated_store)
    with commands.start(*LONG, f"outputs={outputs}", stdout=subprocess.PIPE) as process:
        assert any(re.match(r"epoch +\d+/\d000", line) for line in iter(process.stdout.readline, ""))
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait(300) == 130
        assert time.monotonic() - began < commands.HEARD_SECONDS
    assert f"resume      python -m pipeline {shlex.join(LONG)}" in printed
    return outputs


@pytest.fixture(scope="module")
def finished(module_outputs: Path) -> Path:
    """The outputs of a finished run and its forks."""
    ran(module_outputs, *SHORT)
    return module_outputs


def notes_of(decision: Decision, capsys: Printed) -> str:
    """Return what a command prints about its decision."""
    capsys.readouterr()
    decision.notes.show(Console())
    return capsys.readouterr().out


def job(outputs: Path, *given: str) -> Job:
    return Job(experiment(*LONG, *given, outputs=outputs))


def test_a_stopped_run_has_saved_and_is_found_by_the_same_command(killed: Path, capsys: Printed) -> None:
    before = last(killed)
    assert (before.status, before.error) == ("KILLED", "stopped by Ctrl-C (SIGINT)")
    decision = decide(job(killed))
    assert isinstance(decision.start, Resume)
    assert notes_of(decision, capsys).splitlines()[0].endswith("(status: KILLED)")
    assert (decision.folder.path, decision.start.run.run_id) == (before.folder, before.run_id)


def test_another_experiment_begins_a_new_run(killed: Path) -> None:
    for other in ("seed=1", "resume=never", "strategy=one_device", "name=mine"):
        assert decide(job(killed, other)).start == New()


def test_settings_without_an_effect_may_differ(killed: Path) -> None:
    given = ("train.checkpoint_every_seconds=5", "tracking.tags.team=x", "tracking=off", "cluster.restarts=2")
    assert decide(job(killed, *given)).folder == RunFolder(last(killed).folder)


def test_other_code_begins_a_new_run_and_prints_how_to_resume(
    killed: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr("pipeline.decide.resume.sources", lambda experiment: Sources({"net.py": "other"}))
    new = decide(job(killed))
    assert new.start == New()
    assert "the code has changed since" in " ".join(notes_of(new, capsys).split())
    folder = last(killed).folder
    assert decide(job(killed, f"resume={folder}")).folder == RunFolder(Path(folder))


def test_a_live_run_is_not_ended_by_other_commands(killed: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    replace(last(killed), status="RUNNING", run_id=None).write(folder)
    given, console = experiment("tracking=off", outputs=tmp_path), Console()
    monkeypatch.setattr("pipeline.runs.lock.PATIENCE_SECONDS", 0.3)
    with locked(folder):
        end_lost(RunFolder(folder), given, FAILED, console)
    assert Summary.read(folder).status == "RUNNING"
    end_lost(RunFolder(folder), given, FAILED, console)
    assert Summary.read(folder).status == "FAILED"


def test_a_name_that_two_jobs_have_is_refused(tmp_path: Path) -> None:
    for sweep in ("20260101-000000-aaaaaaaa", "20260102-000000-bbbbbbbb"):
        write_run(tmp_path / "sweeps" / sweep / "1_seed=1", "KILLED")
    with pytest.raises(UserError, match="1_seed=1 matches 2 runs"):
        Runs(tmp_path).find("1_seed=1")


def test_a_named_run_may_be_resumed_with_another_strategy_but_not_with_other_settings(killed: Path) -> None:
    run = last(killed)
    assert run.run_id is not None
    asked = f"resume='{run.run_id[:8]}'"  # it may look like a number
    assert decide(job(killed, asked, "strategy=one_device")).folder == RunFolder(run.folder)
    with pytest.raises(UserError, match=r"train.batch_size was 64 and is now 32\. .*Try: train.batch_size=64$"):
        decide(job(killed, asked, "train.batch_size=32"))
    with pytest.raises(UserError, match=r"fork was None and is now 0badc0de.*Try: fork=null"):
        decide(job(killed, asked, "fork=0badc0de"))


def test_a_command_that_names_a_run_inherits_its_settings(killed: Path) -> None:
    run = last(killed)
    for option in ("resume", "fork"):
        given = [f"{option}={run.folder.name}", f"outputs={killed}", "strategy=one_device"]
        assert all_overrides(given) == [f"{option}='{run.folder.name}'", *given[1:], *LONG[1:]]
    swept = ["-m", f"fork={run.folder}", "strategy=one_device", "seed=1,2", f"outputs={killed}"]
    assert all_overrides(swept) == [f"fork='{run.folder}'", *swept[2:], *LONG[1:]]
    assert all_overrides(["-m", "resume=4e123456", "seed=1,2"]) == ["resume='4e123456'", "seed=1,2"]
    assert all_overrides(["resume=never", "seed=1"]) == ["resume=never", "seed=1"]


def test_an_interrupted_run_ends_in_the_same_folder_and_the_same_tracked_run(killed: Path) -> None:
    """It is resumed on two replicas, and then by its id on one device, where early stopping leaves fewer epochs."""
    before = last(killed)
    checkpoints = before.folder.glob("checkpoints/step-*.npz")
    saved = max(int(path.stem.removeprefix("step-")) for path in checkpoints)
    done = commands.succeed(f"resume={before.run_id}", "strategy=one_device", f"outputs={killed}")
    after = last(killed)
    assert (after.run_id, after.folder) == (before.run_id, before.folder)
    assert (after.status, after.resumed_from_step, after.replicas) == ("FINISHED", saved, 1)
    assert f"resuming training after step {saved}" in done.stdout
    client, run = only_run(killed)
    assert (run.info.run_id, run.info.status) == (after.run_id, "FINISHED")
    assert run.data.tags["resumed_from_step"] == str(saved)
    assert run.data.tags["changed/strategy"] == "one_device"
    assert not run.data.tags["error"]
    for name in ("train/loss", "val/loss", "train/images_per_second"):
        steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
        assert steps == list(range(1, len(steps) + 1))
    for name in ("test/loss", "load/seconds", "export/max_abs_diff"):
        assert len(client.get_metric_history(run.info.run_id, name)) == 1


def test_a_finished_run_is_not_resumed(finished: Path) -> None:
    run = last(finished)
    again = Job(experiment(*SHORT, outputs=finished))
    assert decide(again).start == New()
    with pytest.raises(UserError, match=r"this run has already finished.*Try: fork=.* train.epochs=<more>"):
        decide(replace(again, experiment=experiment(*SHORT, f"resume={run.folder}", outputs=finished)))


def test_a_fork_starts_from_other_weights_and_is_resumed_by_its_command(finished: Path, capsys: Printed) -> None:
    source = last(finished)
    assert source.run_id is not None
    asked = (*SHORT, "train.epochs=4", "optimizer.learning_rate=0.01", f"fork={source.run_id}")
    fork = ran(finished, *asked)
    assert fork.run_id != source.run_id
    assert (fork.resumed_from_step, fork.overrides) == (None, list(asked))
    client, _ = tracked(finished)
    assert client.get_run(str(fork.run_id)).data.tags["forked_from"] == source.run_id
    assert [point.step for point in client.get_metric_history(str(fork.run_id), "val/loss")] == [3, 4]
    for run in (source, fork):
        [_] = run.folder.glob("checkpoints/*.npz")  # without earlier checkpoints and the fork's start
    printed = capsys.readouterr().out
    assert f"forked from {source.run_id[:8]}" in printed
    assert "resum" not in printed
    replace(fork, status="KILLED").write(fork.folder)
    decision = decide(Job(experiment(*asked, outputs=finished)))
    assert (decision.folder.path, decision.origin) == (fork.folder, None)
    named = all_overrides([f"resume={fork.run_id}", f"outputs={finished}", "tracking=off"])
    decision = decide(Job(experiment(*named)))
    assert (decision.folder.path, decision.origin) == (fork.folder, None)
    with claimed(decision) as before:
        begin(decision, before, print)
        assert decision.folder.summary.run_id == fork.run_id


def test_changed_data_is_refused_before_any_work(tmp_path: Path, outputs: Path, capsys: Printed) -> None:
    words = ("data=arrays", f"data.files={tmp_path}/a.npz", *TRAINED, "train.epochs=1", "tracking=off")
    numbers = np.random.default_rng(1).normal(size=(100, 3))
    np.savez(tmp_path / "a.npz", x=numbers, y=np.arange(100) % 2)
    before = ran(outputs, *words)
    killed = replace(before, status="KILLED")
    killed.write(before.folder)
    np.savez(tmp_path / "a.npz", x=numbers + 1, y=np.arange(100) % 2)
    again = Job(experiment(*words, outputs=outputs))
    capsys.readouterr()
    for _ in range(2):  # a failed attempt does not change the fingerprint that the run started with
        assert run_job(again, Console()) == 1
        after = last(outputs)
        assert (after.folder, after.stages["normalize"].status) == (before.folder, "skipped")
        printed = " ".join(capsys.readouterr().out.split())
        assert "load: a.npz has changed since the run began" in printed
        assert "Try: resume=never" in printed
        assert "resume python" not in printed


def test_a_run_killed_before_its_first_checkpoint_begins_again_in_its_folder(outputs: Path, capsys: Printed) -> None:
    folder = outputs / "runs" / "synthetic_mlp" / "20260101-000000-aaaaaaaa"
    made = experiment(*SHORT, outputs=outputs)
    write_run(folder, "RUNNING", None, identity=identity(made), code=sources(made).digest)
    decision = decide(Job(made))
    assert "(status: RUNNING), from epoch 1, because there is no checkpoint\n" in notes_of(decision, capsys)
    ran(outputs, *SHORT)
    assert [path.parent for path in outputs.glob("runs/*/*/summary.json")] == [folder]
    assert Summary.read(folder).resumed_from_step is None


@pytest.mark.smoke
def test_the_identity_depends_only_on_settings_with_an_effect(outputs: Path) -> None:
    plain = identity(experiment(outputs=outputs))
    assert identity(experiment("tracking=off", "resume=never", "tracking.note=b", outputs=outputs / "x")) == plain
    for other in ("seed=1", "train.epochs=31", "precision=mixed", "optimizer.beta_1=0.8", "deterministic=true"):
        assert identity(experiment(other, outputs=outputs)) != plain


def test_secrets_do_not_reach_the_identity_or_the_overrides(tmp_path: Path) -> None:
    given = ("tracking=server", "tracking.uri=http://me:hunter22@127.0.0.1:1")
    run = write_run(tmp_path / "run", "KILLED", overrides=list(given))
    assert "hunter22" not in (run / "summary.json").read_text()
    with pytest.raises(UserError, match=r"tracking.uri is not inherited.*tracking.uri=<as before>"):
        all_overrides([f"resume={run}"])
    uri = "tracking.uri=http://me:again@127.0.0.1:1"
    assert all_overrides([f"resume={run}", uri]) == [f"resume='{run}'", uri, "tracking=server"]
    assert all_overrides([f"resume={run}", "tracking=off"]) == [f"resume='{run}'", "tracking=off"]


def test_a_clock_that_is_set_back_does_not_hide_a_run(outputs: Path) -> None:
    """The last run is the one that began last, whatever the clock says; its name sorts after those of earlier runs."""
    settings = experiment("tracking=off", outputs=outputs)
    folders = []
    for begun in range(3):
        decision = decide(Job(settings))
        with claimed(decision) as before:
            begin(decision, before, print)
            place = decision.folder.path
        if not begun:
            place = place.rename(place.with_name(f"2999{place.name[4:]}"))
        if begun < 2:
            replace(Summary.read(place), status="FINISHED").write(place)
        os.utime(place, (-begun, -begun))
        folders.append(place)
    sweep = outputs / "sweeps" / new_folder_name(outputs)
    (sweep / "1_a").mkdir(parents=True)
    write_index([{"folder": "1_a", "overrides": []}], sweep)
    folders.append(sweep)
    renamed = Path(shutil.copytree(folders[0], folders[0].with_name("the good one")))
    replace(Summary.read(folders[0]), folder=renamed).write(renamed)
    resumed = decide(Job(settings))
    assert isinstance(resumed.start, Resume)
    assert resumed.folder.path == folders[2]
    assert [entry.folder for entry in read_all(outputs)] == [renamed, *folders]
