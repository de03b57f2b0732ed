"""The jobs of a sweep: several at a time, each in a process and on devices of its own, watched, stopped and ended."""

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from signal import SIGTERM
from typing import Any

import psutil

from pipeline.config.cluster import JoinedCluster
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SweepSettings
from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.execute.child import POLL_SECONDS, enter, leave
from pipeline.execute.link import Link, Turn
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.launch.engine import RemoteJob, engine_of
from pipeline.launch.run import run_job
from pipeline.runs.folder import LOG, RunFolder
from pipeline.system import machine, signals, streams
from pipeline.system.environment import thread_variables
from pipeline.system.processes import LocalProcess
from pipeline.tracking.pending import LOST, end_lost
from pipeline.tracking.store import Store, server_answers
from pipeline.tracking.store_process import serve
from stages.errors import UserError
from stages.settings.model import ModelSettings
from stages.settings.places import regular_file
from stages.settings.results import ExportSettings
from stages.targets import target_of


@dataclass(frozen=True)
class Slot:
    """A part of the machine."""

    visible: str | None = None  # the GPUs that a job sees there, as CUDA_VISIBLE_DEVICES has it; None: as they are
    threads: int | None = None  # its part of the processor's; None: as they are

    def environment(self, experiment: Experiment) -> dict[str, str]:
        """Return the variables of a process that runs `experiment` there."""
        variables = {} if self.visible is None else {machine.GPUS: self.visible}
        threads = {} if self.threads is None else thread_variables(self.threads, experiment.deterministic)
        return variables | threads


def deal_out(settings: SweepSettings, experiments: Sequence[Experiment]) -> list[Slot]:
    """Return the slots of `settings.n_jobs` jobs, of which all of `experiments` can run in any.

    A single slot with all devices is left as it is. Several divide the GPUs and the processor's cores among them. More
    jobs than GPUs share these, unless `devices_per_job` asks for some of their own: TensorFlow takes memory as needed.

    Raises:
        UserError: where there are too few GPUs, or jobs cannot run beside each other.
    """
    count, each = settings.n_jobs, settings.devices_per_job
    for experiment in experiments if count > 1 else ():
        if _takes_all(experiment):
            own = " ".join(f"{name}={experiment.choices.get(name)}" for name in ("strategy", "cluster"))
            raise UserError(f"sweep.n_jobs is not supported with {own}: each job uses all of it", "", "sweep.n_jobs=1")
    if any(experiment.cluster.submits_jobs for experiment in experiments):
        if each is not None:
            fix = f"cluster.{'gpus' if hasattr(experiments[0].cluster, 'gpus') else 'gpus_per_task'}={each}"
            raise UserError("sweep.devices_per_job has no effect: jobs get their GPUs from the cluster", "", fix)
        if not all(getattr(experiment.cluster, "wait", True) for experiment in experiments):
            raise UserError(
                "cluster.wait=false is not supported in a sweep, which compares its jobs at the end",
                "",
                "cluster.wait=true",
            )
        return [Slot()] * count
    if count == 1 and each is None:
        return [Slot()]
    visible = machine.visible_gpus()
    threads = max(machine.usable_cores() // count, 1) if count > 1 else None
    if each is None and 0 < len(visible) < count:
        return [Slot(visible[number % len(visible)], threads) for number in range(count)]
    if each is None:
        each = len(visible) // count
    if each * count > len(visible):
        problem = (
            f"{count} jobs at a time with {each} GPUs each need {each * count} GPUs, but {len(visible)} are visible"
        )
        fix = f"sweep.n_jobs={max(len(visible) // each, 1)}" if visible else "sweep.devices_per_job=0"
        raise UserError(problem, "at most as many as are visible, or sweep.devices_per_job=0 to use CPUs only", fix)
    shares = [",".join(visible[number * each : (number + 1) * each]) or "-1" for number in range(count)]
    return [Slot(share if visible else None, threads) for share in shares]


def _takes_all(experiment: Experiment) -> bool:
    return isinstance(experiment.cluster, JoinedCluster) or experiment.choices.get("strategy") == "tpu"


def may_overlap(slots: Sequence[Slot], experiments: Sequence[Experiment]) -> bool:
    """Return whether a job may begin while the one before is evaluated and exported, which holds its devices."""
    fits = len(slots) == 1 and machine.usable_cores() > 1 and not machine.gpus()
    return fits and not any(job.members or job.cluster.submits_jobs or _takes_all(job) for job in experiments)


OUTPUT = "output.log"
"""In the job's folder: what else its process prints, masked when the run ends."""


def refusal_in(run: RunFolder) -> str | None:
    """Return why a job was refused before its run began, as its log says; None if it does not say so."""
    with suppress(OSError):
        lines = regular_file(run.path / LOG).read_text(errors="replace").splitlines()
        return next((text for line in reversed(lines) if (text := line.partition(" error: ")[2])), None)
    return None


class JobProcess(LocalProcess):
    """A job that runs in a process of its own, which has been started.

    Attributes:
        job: what it runs.
        exit_code: None while it runs; 128 + n where signal n killed it, that of the request where it was stopped.
        has_trained: whether another job may begin in its place, and wait for its end.
    """

    def __init__(self, job: Job, console: Console, slot: Slot) -> None:
        assert job.folder is not None
        self.turn, turn = Pipe()
        store = serve(Store(job.experiment.tracking, job.experiment.outputs))
        link = Link(Turn(turn, job.experiment.job_timeout_seconds), store)
        arguments = (job, link, slot.environment(job.experiment), _reloads_afresh(job))
        super().__init__(_work, arguments, job.experiment.hang_seconds)
        for given in filter(None, (turn, store)):
            given.close()  # the process has it
        self.job = job
        self.folder: RunFolder = job.folder
        self.started = time.monotonic()
        self.exit_code: int | None = None
        self.has_trained = False
        self._console = console
        self._stopped_by: signals.Request | None = None

    def train(self) -> None:
        """Let the job train, if it has not yet. Its seconds count from now on."""
        if self.has_trained:
            return
        self.started = time.monotonic()
        with suppress(OSError):  # it has ended
            self.turn.send(self.started)

    def leaves_room(self) -> bool:
        """Return whether as large a job would fit into memory beside it."""
        with suppress(psutil.Error):
            return psutil.virtual_memory().available > 2 * psutil.Process(self.pid).memory_info().rss
        return False

    def stop(self, request: signals.Request, count: int = 1) -> None:
        self._stopped_by = request
        super().stop(request, count)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; to be called every POLL_SECONDS.

        A finished job may still send to its store then, until `has_left`.
        """
        if self.exit_code is None and not self.has_left():
            with suppress(EOFError, OSError):  # it is ending
                while self.exit_code is None and self.turn.poll():
                    self.exit_code = self.turn.recv()
                    self.has_trained = True
        return self.exit_code

    def has_left(self) -> bool:
        """Return whether the process has ended; where it has not ended its run, that is done here."""
        if (ended := self.end()) is None:
            return False
        code, how = ended
        request = self._stopped_by
        if request is not None and code != DONE:
            code = request.exit_code
        stopped = request.exit_code if request is not None else FAILED
        with signals.ending(code if request is not None else None):
            reason = f"its process {how}" if how else LOST
            end_lost(self.folder, self.job.experiment, stopped, self._console, reason)
        self.exit_code = code if self.exit_code is None else self.exit_code
        return True


_reloaded: set[tuple[Path, str]] = set()
"""Sweeps, by their folder, and what a job of theirs exports: a network, in formats."""


def _reloads_afresh(job: Job) -> bool:
    """Return whether `job` is the first of its sweep with this network and formats: further ones reload in their own
    process, since a fresh one that imports TensorFlow costs as much as many a job."""
    model, export = job.experiment.of("model", ModelSettings), job.experiment.of("export", ExportSettings)
    assert job.folder is not None
    kind = (job.folder.path.parent, f"{model and target_of(model.network)} {export and export.formats}")
    is_first = kind not in _reloaded
    _reloaded.add(kind)
    return is_first


def _work(job: Job, link: Link, variables: Mapping[str, str], reloads_afresh: bool) -> None:
    """Run in the process of a job."""
    started = time.monotonic()
    export = job.experiment.of("export", ExportSettings)
    if export is not None and not reloads_afresh:
        export.reload = "here"
    os.environ.update(variables)
    assert job.folder is not None
    job.folder.path.mkdir(parents=True, exist_ok=True)
    streams.append_to(job.folder.path / OUTPUT)
    if machine.gpus() or job.experiment.members:  # a GPU's memory is free when the process has ended
        link = replace(link, turn=Turn())
    enter(job.experiment)
    console = Console(log=job.folder.path / LOG)
    leave(lambda: run_job(job, console, link, started), console, refused=WRONG_CONFIGURATION)


SERVER_PATIENCE_SECONDS = 600.0
"""Seconds that a sweep waits for a tracking server that went away; a job that begins without it is refused."""

FINAL = (DONE, WRONG_CONFIGURATION, TIMED_OUT, *STOPPED)
"""Exit codes after which a job is not run again: the same would happen, or the user wants it to end."""

Running = JobProcess | RemoteJob


def _train(running: Running) -> None:
    if isinstance(running, JobProcess):
        running.train()


@dataclass
class Scheduler:
    """Runs each job in a process of its own, as many at a time as there are slots.

    The next job is taken from `jobs` only when a slot is free, after `on_end` of the job that freed it: a search
    decides by the results so far. Where it `overlaps`, it begins while the one before is evaluated and exported, and
    trains after that one's end. One that died or failed is run again after the others.
    """

    jobs: Iterator[Job]  # each with a folder of its own; asked again, while others run, after it had none
    console: Console
    free: list[Slot]
    on_end: Callable[[Job, int, float, bool], None]  # a job, its exit code and seconds, whether it runs again
    on_poll: Callable[[Sequence[Running]], None]  # about every POLL_SECONDS; may `stop` any
    retries: int = 0  # times that each job is run again
    overlaps: bool = False  # with a single slot, on whose processors two jobs fit

    def __post_init__(self) -> None:
        self._running: dict[Running, Slot] = {}
        self._sending: list[JobProcess] = []  # their jobs have finished, and another may train in their slots
        self._again = deque[Job]()
        self._left: defaultdict[RunFolder, int] = defaultdict(lambda: self.retries)

    def run(self) -> None:
        """Return when all jobs have ended; whatever ends it, no process is left running.

        Raises:
            Interrupted: after a signal, when all processes have saved and ended, and `on_end` was called for each.
        """
        try:
            while self._fill() or self._sending:
                signals.check()
                self._wait()
                self.on_poll(list(self._running))
            signals.check()
        except BaseException:
            self._stop_all(signals.requested() or signals.signal_request(SIGTERM))
            raise

    def _fill(self) -> bool:
        """Start jobs in the slots that are free; return whether any job runs."""
        while (slot := self._slot()) is not None and (job := self._next()) is not None:
            try:
                running = self._started(job, slot)
            except UserError as error:
                self.console.error(str(error))
                self.on_end(job, WRONG_CONFIGURATION, 0.0, False)
            else:
                self._running[running] = slot
                if self.free:
                    self.free.pop(0)
                    _train(running)
        return bool(self._running)

    def _slot(self) -> Slot | None:
        """Return the slot of the next job: a free one, or that of a job that has trained and leaves room for it."""
        if self.free or not self.overlaps or len(self._running) != 1:
            return self.free[0] if self.free else None
        [(running, slot)] = self._running.items()
        return slot if isinstance(running, JobProcess) and running.has_trained and running.leaves_room() else None

    def _release(self, slot: Slot) -> None:
        """Let the job train that waits in `slot`; where there is none, the slot is free."""
        if not self.overlaps or not self._running:
            self.free.append(slot)
        for running in self._running if self.overlaps else ():
            _train(running)

    def _started(self, job: Job, slot: Slot) -> Running:
        if job.experiment.cluster.submits_jobs:
            return engine_of(job.experiment).start(job, self.console)
        return JobProcess(job, self.console, slot)

    def _next(self) -> Job | None:
        """Return the next job, once its tracking server answers; None where there is none for now."""
        signals.check()
        job = next(self.jobs, None) or (self._again.popleft() if self._again else None)
        if job is not None:
            wait_for_server(job.experiment, self.console)
        return job

    def _wait(self) -> None:
        """Wait for the end of a process, POLL_SECONDS at most, and tell of those that have ended."""
        own = [process for process in self._running if isinstance(process, JobProcess)]
        ends: list[Any] = [end for process in own for end in (process.sentinel, process.turn)]
        wait([*ends, *(process.sentinel for process in self._sending)], POLL_SECONDS)
        self._sending = [process for process in self._sending if not process.has_left()]
        for process in list(self._running):
            code = process.poll()
            if code is not None:
                self._release(self._running.pop(process))
                if isinstance(process, JobProcess) and process.exitcode is None:
                    self._sending.append(process)
                again = code not in FINAL and self._left[process.folder] > 0
                if again:
                    self._left[process.folder] -= 1
                    self._again.append(process.job)
                self.on_end(process.job, code, time.monotonic() - process.started, again)

    def _stop_all(self, request: signals.Request) -> None:
        """Have all processes save and end, and wait for them."""
        with signals.supervising():
            while self._running or self._sending:
                for process in (*self._running, *self._sending):
                    process.stop(request, max(signals.times_requested(), 1))
                self._wait()


def wait_for_server(experiment: Experiment, console: Console) -> None:
    """Wait for a tracking server that went away since the sweep began: a job cannot begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            server_answers(experiment)
            return
        except UserError as error:
            console.warn(f"{error.problem}; the next job is waiting for it")
            signals.pause(10)
