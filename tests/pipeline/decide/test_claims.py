"""A run can be found as soon as its folder exists, and a run that never began leaves nothing."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from omegaconf import OmegaConf

from pipeline.commands import clean
from pipeline.console import Console
from pipeline.decide.decision import Decision, Fork, New, Resume, decide
from pipeline.decide.job import Job
from pipeline.execute import execute
from pipeline.execute.claim import claimed
from pipeline.execute.records import begin
from pipeline.launch.local import LocalMembers, Members
from pipeline.launch.run import run_job
from pipeline.runs import lock
from pipeline.runs.lock import LockedError
from pipeline.runs.summary import Summary
from pipeline.sweep.select import read_all
from stages.checkpoints.names import START
from stages.errors import UserError
from tests.pipeline.experiments import SMALL, Patch, Printed, experiment

WORDS = (*SMALL, "tracking=off")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(experiment(*WORDS, outputs=tmp_path))


def killed_before_it_began(decision: Decision) -> Path:
    """Kill a process that has only claimed the folder of `decision`; return the folder."""
    child = os.fork()
    if child == 0:
        with claimed(decision):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return decision.folder.path


def printed(decision: Decision, capsys: Printed) -> str:
    """Return what a command prints about its decision, in one line."""
    capsys.readouterr()
    decision.notes.show(Console())
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("supervises", [False, True])
def test_the_same_command_finds_a_run_as_soon_as_its_folder_exists(
    job: Job, supervises: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.1)
    outputs = job.experiment.outputs
    first, late = decide(job), decide(job)  # the second decides just before the first begins
    with claimed(first, supervises=supervises):
        second = decide(job)
        assert (second.folder, type(second.start)) == (first.folder, Resume)
        with pytest.raises(LockedError), claimed(second):
            pass
        with pytest.raises(LockedError), claimed(late):
            pass
        for other in ("seed=7", "resume=never"):
            beside = decide(Job(experiment(*WORDS, other, outputs=outputs)))
            with claimed(beside):
                assert beside.folder != first.folder
        assert Summary.read(first.folder.path).status == "RUNNING"
    assert not [*outputs.glob("runs/*/*")]


def test_only_one_of_several_simultaneous_commands_begins_the_run(job: Job, monkeypatch: Patch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 2.0)
    barrier = threading.Barrier(6)

    def begin(_: int) -> object:
        claim = claimed(decide(job))
        barrier.wait()  # all have decided by now
        try:
            claim.__enter__()
        except LockedError:
            return None
        return claim

    with ThreadPoolExecutor(6) as pool:
        claims = [claim for claim in pool.map(begin, range(6)) if claim is not None]
    assert len(claims) == len([*job.experiment.outputs.glob("runs/*/*")]) == 1


@pytest.mark.parametrize("strategy", ["default", "multi_worker"])
def test_tensorflow_is_imported_when_the_run_can_be_found(
    strategy: str, job: Job, monkeypatch: Patch, capsys: Printed
) -> None:
    """A run that is refused during the import leaves nothing, whoever claimed the folder first."""
    decisions: list[Decision] = []
    job = replace(job, experiment=experiment(*WORDS, f"strategy={strategy}", outputs=job.experiment.outputs))

    def refuse(*_: object) -> NoReturn:
        decisions.append(decide(job))
        raise UserError("its import fails", "a module")

    monkeypatch.setattr(execute, "bind", refuse)
    if strategy == "default":
        with pytest.raises(UserError, match="its import fails"):
            run_job(job, Console())
    else:

        def refuse_as_chief(cluster: Any) -> None:
            with pytest.raises(UserError, match="its import fails"):
                execute.execute(cluster._decision, cluster._console, is_supervised=True)
            cluster._processes, cluster._members = {}, Members([], lambda task: None, list, cluster._console)
            cluster._members.deadline = 0.0

        monkeypatch.setattr(LocalMembers, "_start_members", refuse_as_chief)
        assert run_job(job, Console()) == 1
        assert "the run is FAILED" not in capsys.readouterr().out
    assert isinstance(decisions[0].start, Resume)
    assert decisions[0].start.run.status == "RUNNING"
    assert not [*job.experiment.outputs.glob("runs/*/*")]


def test_a_run_that_was_killed_at_once_is_listed_and_resumed(job: Job, capsys: Printed) -> None:
    folder = killed_before_it_began(decide(job))
    outputs = job.experiment.outputs
    [entry] = read_all(outputs)
    assert (entry.folder, entry.status) == (folder, "INTERRUPTED")
    assert clean.main(["--outputs", str(outputs), "--older-than", "0", "--dry-run"]) == 0
    again = decide(job)
    assert again.folder.path == folder
    output = printed(again, capsys)
    assert f"{folder.name} (status: RUNNING), from epoch 1, because there is no checkpoint" in output
    with claimed(again) as before:
        begin(again, before, print)
    assert Summary.read(folder).status == "RUNNING"


def test_a_fork_that_was_killed_at_once_still_starts_from_the_other_run(job: Job, capsys: Printed) -> None:
    source = job.experiment.outputs / "other"
    (source / "checkpoints").mkdir(parents=True)
    Summary("abcdef12", "FINISHED", "x", source, {}).write(source)
    facts = np.frombuffer(b'{"facts": {"step": 1}, "dtypes": {}}', np.uint8)
    np.savez(source / "checkpoints" / "step-00000001.npz", facts=facts)
    OmegaConf.save(job.experiment.document, source / "config.yaml")
    words = (*WORDS, f"fork={source}")
    fork = decide(Job(experiment(*words, outputs=job.experiment.outputs)))
    assert isinstance(fork.start, New)
    assert isinstance(fork.origin, Fork)
    folder = killed_before_it_began(fork)
    again = decide(Job(fork.experiment))
    assert (again.folder.path, again.origin) == (folder, fork.origin)
    assert "from epoch 1" not in printed(again, capsys)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / START).write_bytes(b"")
    assert decide(Job(fork.experiment)).origin is None
