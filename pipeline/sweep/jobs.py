"""A sweep: jobs checked together, run one after another, each in a fresh process, under one parent run."""

import math
import re
import sys
import time
import traceback
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.checks.registry import check_rules
from pipeline.checks.unused import refuse_unused
from pipeline.command_line.compose import Composed
from pipeline.config.errors import explain
from pipeline.config.experiment import Experiment, read
from pipeline.config.keys import dotted
from pipeline.config.schemas import MOST_JOBS
from pipeline.paths import shorter
from pipeline.redaction.mask import guard_output, learn, redact_overrides
from pipeline.run import provenance
from pipeline.run.clock import process_started
from pipeline.run.console import Console
from pipeline.run.identity import identity
from pipeline.run.job import DONE, FAILED, STOPPED, WRONG_CONFIGURATION, Job, SweepRun, exit_code
from pipeline.run.launch import run_job
from pipeline.run.lock import locked
from pipeline.run.origin import Origin
from pipeline.run.plan import make_plan
from pipeline.run.resume import has_finished
from pipeline.run.settle import LOST, end_lost, flush, send_rest
from pipeline.run.source_digest import Sources, sources
from pipeline.run.supervisor import POLL_SECONDS, pass_on
from pipeline.sweep.comparison import compare, write
from pipeline.sweep.index import unfinished, write_index
from pipeline.system import environment, pulse, signals, streams
from pipeline.system.processes import become_independent, process_context, start
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signal_listener import Interrupted
from pipeline.system.signals import TIMED_OUT
from pipeline.tracking.health import server_answers
from pipeline.tracking.journal import Journal
from pipeline.tracking.spec import RunSpec, open_tracker
from pipeline.tracking.tracker import NullTracker, Patience, Tracker
from stages.errors import UserError

SERVER_PATIENCE_SECONDS = 600.0
"""How long a sweep waits for a tracking server that has gone; a job that begins without it is refused."""

TIMEOUT_GRACE_SECONDS = 60.0
"""How long a job has to save and end by `job_timeout_seconds` before it is killed."""

BEFORE_RUN_SECONDS = 0.2
"""Before a job's run has begun nothing is lost: a signal need not wait for a safe place."""


CHECK_NOTE_SECONDS = 2.0
"""How long the jobs of a sweep may be checked without a word, and between two lines on how many are."""


OF_A_SWEEP = ("dry_run", "max_jobs", "outputs", "resume", "tracking")
"""Settings that all jobs of a sweep share."""


def run_sweep(composed: Iterable[Composed], total: int, console: Console) -> int:
    """Runs the jobs, `total` in number, and returns the sweep's exit code: 0, 3 where some failed, 130 or 143 where it
    was stopped.

    Where the last sweep of the same jobs has not finished, it is gone on with: jobs that have finished stay as they
    are, one that was interrupted continues.

    Raises:
        UserError: where any of the jobs is wrong; none has been started then.
    """
    overrides, experiments = _check_all(composed, total, console)
    first = experiments[0]
    typed = [[re.sub(r"\\(.)", r"\1", given) for given in job] for job in overrides]  # without Hydra's escapes
    labels = job_labels([redact_overrides(job) for job in typed])
    if first.dry_run:
        console.say(f"{total:,} jobs")
        for label, experiment in zip(labels, experiments, strict=True):
            console.say(f"\n{label}")
            console.plan(experiment, make_plan(experiment))
        return DONE
    names = [f"{number}_{slug(label)}" for number, label in enumerate(labels, 1)]
    code = [sources(experiment) for experiment in experiments]
    index: list[dict[str, Any]] = [
        {"folder": name, "overrides": redact_overrides(job), "identity": identity(experiment), "code": own.digest}
        for name, job, experiment, own in zip(names, typed, experiments, code, strict=True)
    ]
    everything = Sources({name: content for own in code for name, content in own.files.items()})
    folder = unfinished(index, first, everything, console.say, lambda folder: _is_sent(folder, index, first))
    goes_on = folder is not None
    if folder is None:
        folder = first.outputs / "sweeps" / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
    console.say(f"sweep {folder.name}: {total:,} jobs{', gone on with' if goes_on else ''}")
    with locked(folder):
        everything.write(folder)
        Origin(first.name, jobs=index).write(folder)
        write_index(index, folder)
        return _run(folder, index, overrides, experiments, labels, console)


def _run(
    folder: Path,
    index: list[dict[str, Any]],
    overrides: Sequence[tuple[str, ...]],
    experiments: Sequence[Experiment],
    labels: Sequence[str],
    console: Console,
) -> int:
    """Runs the jobs of a sweep that have not finished."""
    first, parent = experiments[0], NullTracker()  # type: Experiment, Tracker
    codes: list[int] = []
    begun: str | None = None
    with ExitStack() as held, signals.listening(), signals.uninterrupted():
        try:
            parent = _parent_run(first, folder, len(experiments), console)
            begun = parent.run_id
            held.enter_context(signals.last_words(lambda wanted: _mark_killed(parent)))
            for number, (given, experiment, label) in enumerate(zip(overrides, experiments, labels, strict=True), 1):
                pulse.beat()
                signals.check()
                place = folder / index[number - 1]["folder"]
                if has_finished(place):
                    console.say(f"\njob {number}/{len(experiments)}  {label}: has finished", style="bold")
                    send_rest(place, experiment, console, parent.run_id)
                    codes.append(DONE)
                else:
                    _wait_for_server(experiment, console)
                    console.say(f"\njob {number}/{len(experiments)}  {label}", style="bold")
                    codes.append(_run_one(Job(experiment, given, place, SweepRun(parent.run_id, first.name)), console))
                    if codes[-1] != DONE:
                        console.error(f"job {number}/{len(experiments)}  {label}: exit code {codes[-1]}")
                index[number - 1]["exit_code"] = codes[-1]
                write_index(index, folder)
                if codes[-1] in STOPPED:
                    break
        except Interrupted as interrupted:
            codes.append(interrupted.exit_code)
        with signals.ending(exit_code(codes)):
            status = _finish(folder, parent, codes, console)
            if parent.run_id != begun:  # the store has lost the sweep's run: its jobs belong to the new one
                for one, experiment in zip(index[: len(codes)], experiments, strict=False):
                    send_rest(folder / one["folder"], experiment, console, parent.run_id)
            write_index(index, folder, status)  # last of all: before it, the same command goes on with this sweep
            return exit_code(codes)


def job_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns what tells each job from the others: the overrides that not all of them share."""
    shared = set.intersection(*(set(job) for job in overrides)) if overrides else set()
    return [" ".join(given for given in job if given not in shared) or "the only job" for job in overrides]


def slug(label: str) -> str:
    """Returns `label` as a part of a file name."""
    return re.sub(r"[^\w=.,+-]+", "_", label.replace(" ", ","))[:100]


def refuse_too_many(total: int, limit: int) -> None:
    """Raises UserError where a sweep has more jobs than `max_jobs` allows."""
    if total > limit:
        fix = f"max_jobs={total}" if total <= MOST_JOBS else "fewer values of each setting"
        raise UserError(f"the values make {total:,} jobs, and max_jobs={limit}", f"{limit:,} jobs or fewer", fix)


def _check_all(
    composed: Iterable[Composed], total: int, console: Console
) -> tuple[list[tuple[str, ...]], list[Experiment]]:
    """Returns the overrides of each job, and its experiment, once all of them are known to work.

    Files, servers and devices are asked once, as the jobs share `outputs` and `tracking`.
    """
    experiments: list[Experiment] = []
    overrides: list[tuple[str, ...]] = []
    noted = time.monotonic()
    for number, job in enumerate(composed, 1):
        try:
            experiment = read(job.document, job.choices, job.config_dirs)
            refuse_unused(experiment, job.typed)
            check_rules(experiment, surroundings=number == 1)
            make_plan(experiment)
            _refuse_differing(experiment, experiments[0] if experiments else experiment)
        except (HydraException, OmegaConfBaseException, UserError) as error:
            reason = error if isinstance(error, UserError) else explain(error, list(dotted(job.document)))
            raise reason.within(f"job {number:,} of {total:,} ({' '.join(redact_overrides(job.overrides))})") from error
        experiments.append(experiment)
        overrides.append(job.overrides)
        if time.monotonic() - noted > CHECK_NOTE_SECONDS:
            noted = time.monotonic()
            console.say(f"checked {number:,} of {total:,} jobs")
    return overrides, experiments


def _refuse_differing(experiment: Experiment, first: Experiment) -> None:
    """Refuses jobs that differ in what a sweep has but once."""
    for name in OF_A_SWEEP:
        mine, others = getattr(experiment, name), getattr(first, name)
        if mine != others:
            shown, expected = (str(one.kind if name == "tracking" else one) for one in (mine, others))
            if isinstance(mine, bool):
                shown, expected = shown.lower(), expected.lower()
            raise UserError(
                f"{name}={shown}, where the first job has {expected}", "one for the whole sweep", f"{name}={expected}"
            )


def _parent_run(experiment: Experiment, folder: Path, jobs: int, console: Console) -> Tracker:
    tags = {**experiment.tags, "sweep": folder.name, "jobs": str(jobs)}
    name = f"sweep {folder.name}"
    spec = RunSpec(experiment.tracking, experiment.outputs, folder, experiment.name, name, tags=tags)
    return open_tracker(spec, console.warn)


def _is_sent(folder: Path, index: Sequence[dict[str, Any]], experiment: Experiment) -> bool:
    """Returns whether the store has everything of a sweep that has finished, and of its jobs."""
    if experiment.tracking.kind == "off":
        return True
    journals = [Journal(path) for path in (folder, *(folder / job["folder"] for job in index))]
    return all(journal.is_closed for journal in journals if journal.run_id is not None or not journal.trusted)


def _wait_for_server(experiment: Experiment, console: Console) -> None:
    """Waits for a tracking server that has gone since the sweep began: a job cannot begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            return server_answers(experiment)
        except UserError as error:
            console.warn(f"{error.problem}; the next job waits for it")
            signals.pause(10)
    return None


def _run_one(job: Job, console: Console) -> int:
    """Runs a job in a process of its own and returns its exit code; a signal, or its time limit, ends it."""
    assert job.folder is not None
    context = process_context()
    shown = Pulse(context)
    process = start(context, _work, (job, shown))
    assert process.pid is not None
    hang_seconds, limit = job.experiment.hang_seconds, job.experiment.job_timeout_seconds
    watch = Watch(shown, process.pid, hang_seconds) if hang_seconds is not None else None
    deadline = math.inf if limit is None else time.monotonic() + limit + TIMEOUT_GRACE_SECONDS
    reason, code = LOST, None
    while process.exitcode is None:
        wait([process.sentinel], POLL_SECONDS)
        if (wanted := signals.requested()) is not None:
            pass_on(process, shown)  # it is in a group of its own, so the terminal did not tell it
            code = wanted.exit_code
        elif process.exitcode is None and watch is not None and watch.hangs():
            reason = f"it gave no sign of life for {watch.silence():.0f} s, and was killed"
            process.kill()
        elif process.exitcode is None and time.monotonic() > deadline:
            reason, code = f"it did not end by job_timeout_seconds={limit:g}, and was killed", TIMED_OUT
            process.kill()
        elif watch is not None:
            watch.note()
        if reason is not LOST:
            process.join()
    process.join()
    with signals.ending(code):
        end_lost(job.folder, job.experiment, "FAILED" if code is None else "KILLED", console, reason)
    if code is not None:
        return code
    ended = process.exitcode
    return 128 - ended if ended < 0 else ended  # killed by signal n: as a shell says it


def _work(job: Job, shown: Pulse) -> None:
    """What a job's process does."""
    learn(OmegaConf.to_container(job.experiment.document, resolve=True))
    environment.prepare()
    become_independent()
    streams.guard()
    guard_output()
    pulse.adopt(shown)
    with signals.listening(owns_process=True), signals.interruptible(BEFORE_RUN_SECONDS):
        console = Console()
        try:
            code = run_job(replace(job, started=process_started()), console)
        except Interrupted as interrupted:
            code = interrupted.exit_code
        except UserError as error:
            console.error(str(error))
            code = WRONG_CONFIGURATION
        except Exception:
            console.error(traceback.format_exc())
            code = FAILED
        signals.ended(code)
    sys.exit(code)


def _mark_killed(parent: Tracker) -> None:
    parent.status("KILLED")
    parent.flush(Patience.of_stopped())


def _finish(folder: Path, parent: Tracker, codes: Sequence[int], console: Console) -> str:
    """Prints and writes the comparison, then ends the tracked run; returns its status."""
    comparison = compare(folder)
    console.say()
    console.table(comparison.table())
    paths = write(comparison, folder)
    console.say(f"comparison  {shorter(folder / 'comparison.md')}")
    for label, line in zip(("open", ""), (parent.how_to_open() or "").splitlines(), strict=False):
        console.say(f"{label:11} {line}")
    code = exit_code(codes)
    if code != DONE:
        console.say(f"{'continue':11} {provenance.command()}")
    for path in paths:
        parent.artifact(path)
    parent.tags({"failed": str(sum(code != DONE for code in codes))})
    status = "KILLED" if code in STOPPED else "FAILED" if code else "FINISHED"
    parent.status(status)
    flush(parent, code == DONE, console)
    parent.close()
    console.say(f"{'time':11} {time.monotonic() - process_started():.1f} s for {len(comparison.jobs)} jobs: {status}")
    return status
