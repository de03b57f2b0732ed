"""Jobs of a sweep on this machine, each in a separate process."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import psutil

from pipeline.console import Console
from pipeline.decide.decision import Decision
from pipeline.decide.job import Job
from pipeline.execute.child import enter, leave
from pipeline.execute.link import Link, Turn
from pipeline.exit_codes import DONE, FAILED, WRONG_CONFIGURATION
from pipeline.launch.handle import Handle
from pipeline.launch.launcher import Launcher
from pipeline.launch.run import carry_out, show_decision
from pipeline.launch.slots import Slot
from pipeline.runs.folder import LOG
from pipeline.system import machine, signals, streams
from pipeline.system.processes import LocalProcess
from pipeline.tracking.ending import LOST, end_dead
from pipeline.tracking.follower import Follower
from pipeline.tracking.store import Store
from stages.settings.model import ModelSettings
from stages.settings.results import ExportSettings
from stages.targets import target_of

OUTPUT = "output.log"
"""The file in the job's folder with the other output of its process. Secrets are masked when the run ends."""


class Forked(Launcher):
    """Starts a run in a separate process, in a slot of this machine. The follower sends its records."""

    def __init__(self, slot: Slot, follower: Follower) -> None:
        super().__init__(None)
        self._slot = slot
        self._follower = follower

    def start(
        self, decision: Decision, console: Console, link: Link | None = None, started: float | None = None
    ) -> Handle:
        experiment = decision.experiment
        self._follower.follow(decision.folder.path, Store(experiment.tracking, experiment.outputs))
        return JobProcess(decision, console, self._slot)


class JobProcess(Handle):
    """A job in a separate process on this machine.

    Its exit code is 128 + n if signal n killed it, and the exit code of the request if it was stopped.

    Attributes:
        process: The process.
    """

    def __init__(self, decision: Decision, console: Console, slot: Slot) -> None:
        super().__init__(decision.job)
        job = self.job
        self._turn, turn = Pipe()
        link = Link(Turn(turn, job.experiment.job_timeout_seconds), is_followed=True)
        arguments = (decision, link, slot.environment(job.experiment), _reloads_afresh(job))
        self.process = LocalProcess(_work, arguments, job.experiment.hang_seconds)
        turn.close()  # the process has it
        self._console = console
        self._has_trained = self._has_left = False
        self._stopped_by: signals.Request | None = None

    @property
    def events(self) -> Sequence[Any]:
        return [self.process.sentinel, *([self._turn] if self.exit_code is None else [])]

    def train(self) -> None:
        """Let the job train, if it has not yet. Its seconds count from now on."""
        if self._has_trained:
            return
        self.started = time.monotonic()
        with suppress(OSError):  # it has ended
            self._turn.send(self.started)

    def makes_room(self) -> bool:
        with suppress(psutil.Error):
            used = psutil.Process(self.process.pid).memory_info().rss
            return self._has_trained and psutil.virtual_memory().available > 2 * used
        return False

    def stop(self, request: signals.Request, count: int = 1) -> None:
        self._stopped_by = request
        self.process.stop(request, count)

    def poll(self) -> int | None:
        if self.exit_code is None and not self.has_left():
            with suppress(EOFError, OSError):  # it is ending
                while self.exit_code is None and self._turn.poll():
                    self.exit_code = self._turn.recv()
                    self._has_trained = True
        return self.exit_code

    def has_left(self) -> bool:
        """Return whether the process has ended. If it has ended without ending its run, this ends the run."""
        if self._has_left or (ended := self.process.end()) is None:
            return self._has_left
        code, how = ended
        request = self._stopped_by
        if code != DONE and self.folder.has_finished:  # it died while it printed its results or waited for the upload
            code = DONE
        elif request is not None and code != DONE:
            code = request.exit_code
        stopped = request.exit_code if request is not None else FAILED
        with signals.ending():
            reason = f"its process {how}" if how else LOST
            end_dead(self.folder, stopped, reason, self._console)
        self.exit_code = code if self.exit_code is None else self.exit_code
        self._has_left = True
        return True


_reloaded: set[tuple[Path, str]] = set()
"""The exports that a fresh process has checked: the folder of the sweep, and the network with its formats."""


def _reloads_afresh(job: Job) -> bool:
    """Return whether `job` is the first of its sweep that exports this network in these formats.

    Its exported model is loaded again in a fresh process. The other jobs do that in their own process, because a fresh
    one that imports TensorFlow takes as long as a whole job.
    """
    model, export = job.experiment.of("model", ModelSettings), job.experiment.of("export", ExportSettings)
    assert job.folder is not None
    kind = (job.folder.path.parent, f"{model and target_of(model.network)} {export and export.formats}")
    is_first = kind not in _reloaded
    _reloaded.add(kind)
    return is_first


def _work(decision: Decision, link: Link, variables: Mapping[str, str], reloads_afresh: bool) -> None:
    """Run a job: the main function of its process."""
    started = time.monotonic()
    experiment, run = decision.experiment, decision.folder
    export = experiment.of("export", ExportSettings)
    if export is not None and not reloads_afresh:
        export.reload = "here"
    os.environ.update(variables)
    run.path.mkdir(parents=True, exist_ok=True)
    streams.append_to(run.path / OUTPUT)
    if machine.gpus() or experiment.members:  # a GPU's memory is free when the process has ended
        link = replace(link, turn=Turn())
    enter(experiment)
    console = Console(log=run.path / LOG)

    def work() -> int:
        show_decision(decision, console)
        return carry_out(decision, console, link, started)

    leave(work, console, refused=WRONG_CONFIGURATION)
