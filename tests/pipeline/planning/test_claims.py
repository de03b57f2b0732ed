"""A run can be found from the moment that its folder exists, and one that never began leaves nothing."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from omegaconf import OmegaConf

from pipeline.commands import clean
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.engines import local
from pipeline.planning.earlier import resolve
from pipeline.planning.job import Job, claimed, new_folder
from pipeline.run import executor
from pipeline.run.engine import run_job
from pipeline.run_folder import lock
from pipeline.run_folder.lock import LockedError
from pipeline.run_folder.summary import Summary
from pipeline.sweep.select import read_entries
from stages.checkpoints.names import START
from stages.errors import UserError
from tests.pipeline.experiments import SMALL, Patch, Printed, experiment, only_folder

WORDS = (*SMALL, "tracking=off")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(experiment(*WORDS, outputs=tmp_path), WORDS)


def killed_before_it_began(job: Job) -> Path:
    """Kill a process that has claimed a folder for `job` and done nothing else; return the folder."""
    child = os.fork()
    if child == 0:
        with claimed(job):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return job.folder or only_folder(job.experiment.outputs)


@pytest.mark.parametrize("supervises", [False, True])
def test_the_same_command_finds_a_run_as_soon_as_its_folder_exists(
    job: Job, supervises: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.1)
    with claimed(job, supervises) as claim:
        second = resolve(job, Console())
        assert second.folder == claim.folder
        with pytest.raises(LockedError), claimed(second):
            pass
        with pytest.raises(LockedError), claimed(job):  # it had looked a moment earlier
            pass
        other = replace(job, experiment=experiment(*WORDS, "seed=7", outputs=job.experiment.outputs))
        with claimed(other) as beside:
            assert beside.folder != claim.folder
        wanted = replace(job, experiment=experiment(*WORDS, "resume=never", outputs=job.experiment.outputs))
        with claimed(wanted) as beside:
            assert beside.folder != claim.folder
        assert Summary.read(claim.run_folder).status == "RUNNING"
    assert not [*job.experiment.outputs.glob("runs/*/*")]


def test_of_commands_that_start_together_one_begins_the_run(job: Job, monkeypatch: Patch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 2.0)
    barrier = threading.Barrier(6)

    def late(experiment: Experiment) -> Path:
        time.sleep(0.1)  # all have looked by now, if they may look at once
        return new_folder(experiment)

    monkeypatch.setattr("pipeline.planning.job.new_folder", late)

    def begin(_: int) -> object:
        claim = claimed(job)
        barrier.wait()
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
    """And a run that is refused while it is imported leaves nothing, whoever has claimed the folder first."""
    found: list[Job] = []
    job = replace(job, experiment=experiment(*WORDS, f"strategy={strategy}", outputs=job.experiment.outputs))

    def refuse(*_: object) -> NoReturn:
        found.append(resolve(job, Console()))
        raise UserError("its import fails", "a module")

    monkeypatch.setattr(executor, "bind", refuse)
    if strategy == "default":
        with pytest.raises(UserError, match="its import fails"):
            run_job(job, Console())
    else:
        monkeypatch.setattr(local, "_attempt", lambda claim, plan, console: (refuse_as_chief(claim, console), None))

        def refuse_as_chief(claim: Job, console: Console) -> int:
            with pytest.raises(UserError, match="its import fails"):
                executor.work(claim, (), console)
            return 1

        assert run_job(job, Console()) == 1
        assert "the run is FAILED" not in capsys.readouterr().out
    assert found[0].resumed is not None
    assert found[0].resumed.status == "RUNNING"
    assert not [*job.experiment.outputs.glob("runs/*/*")]


def test_a_run_that_was_killed_at_once_is_listed_and_resumed(job: Job, capsys: Printed) -> None:
    folder = killed_before_it_began(job)
    outputs = job.experiment.outputs
    [entry] = read_entries(outputs)
    assert (entry.folder, entry.status) == (folder, "INTERRUPTED")
    assert clean.main(["--outputs", str(outputs), "--older-than", "0", "--dry-run"]) == 0
    capsys.readouterr()
    again = resolve(job, Console())
    assert again.folder == folder
    said = " ".join(capsys.readouterr().out.split())
    assert f"{folder.name} (status: RUNNING), from epoch 1, because there is no checkpoint" in said
    with claimed(again) as claim:
        executor.begin(claim, Console())
    assert Summary.read(folder).status == "RUNNING"


def test_a_fork_that_was_killed_at_once_still_starts_from_the_other_run(job: Job, capsys: Printed) -> None:
    source = job.experiment.outputs / "other"
    (source / "checkpoints").mkdir(parents=True)
    Summary("abcdef12", "FINISHED", "x", str(source), {}).write(source)
    facts = np.frombuffer(b'{"facts": {"step": 1}, "dtypes": {}}', np.uint8)
    np.savez(source / "checkpoints" / "step-00000001.npz", facts=facts)
    OmegaConf.save(job.experiment.document, source / "config.yaml")
    words = (*WORDS, f"fork={source}")
    fork = resolve(Job(experiment(*words, outputs=job.experiment.outputs), words), Console())
    assert fork.forked is not None
    folder = killed_before_it_began(fork)
    again = resolve(Job(fork.experiment, words), Console())
    with claimed(again) as claim:
        assert (claim.folder, claim.forked) == (folder, fork.forked)
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / START).write_bytes(b"")
    assert "from epoch 1" not in capsys.readouterr().out
    with claimed(again) as claim:
        assert claim.forked is None
