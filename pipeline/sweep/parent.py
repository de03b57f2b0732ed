"""The folder and the tracked run of a sweep: begun before its jobs, ended with their comparison."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.comparison.page import write
from pipeline.comparison.tables import notes, terminal_table
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TrackingSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, STOPPED
from pipeline.paths import new_folder_name, shorter
from pipeline.provenance.code_state import code_state, command, resuming_command
from pipeline.run.begin import begun_tags
from pipeline.run.facts import NOTE, sweep_description
from pipeline.run_folder.settle import flush
from pipeline.sweep.comparison import compare
from pipeline.sweep.jobs import SweepJob
from pipeline.system.environment import imports_kept
from pipeline.system.processes import process_started
from pipeline.tracking.journal import Journal
from pipeline.tracking.tracker import Patience, RunSpec, Tracker, open_tracker


def new_sweep_folder(experiment: Experiment) -> Path:
    """Makes the folder of a new sweep."""
    folder = experiment.outputs / "sweeps" / new_folder_name(experiment.outputs)
    folder.mkdir(parents=True)
    return folder


def parent_run(experiment: Experiment, folder: Path, jobs: int, name: str, console: Console) -> Tracker:
    """Opens the tracked run of the sweep in `folder`."""
    tags = begun_tags(experiment.tracking, code_state()) | {"sweep": folder.name, "jobs": str(jobs)}
    if experiment.debug is not None:
        tags["debug"] = experiment.debug.kind
    spec = RunSpec(experiment.tracking, experiment.outputs, folder, experiment.name, name, tags=tags)
    with imports_kept():
        return open_tracker(spec, console.warn)


def mark_killed(parent: Tracker) -> None:
    """Marks the tracked run of a sweep as KILLED, as this process is about to be ended by force."""
    parent.status("KILLED")
    parent.flush(Patience.of_stopped())


def finish(
    folder: Path,
    parent: Tracker,
    jobs: Sequence[SweepJob],
    code: int,
    console: Console,
    more: Sequence[Path] = (),
) -> str:
    """Prints and writes the comparison, then ends the tracked run; returns its status.

    Args:
        code: the exit code of the sweep. more: files that belong to the tracked run, too.
    """
    comparison = compare(folder)
    console.log()
    if comparison.rows:
        console.table(terminal_table(comparison))
    for line in notes(comparison):
        console.log(line)
    paths = write(comparison, folder)
    console.log(f"comparison  {shorter(folder / 'comparison.html')}")
    for label, line in zip(("open", ""), (parent.how_to_open() or "").splitlines(), strict=False):
        console.log(f"{label:11} {line}")
    if code != DONE:
        console.log(f"{'resume':11} {resuming_command()}")
    for path in (*paths, *more):
        parent.artifact(path)
    if jobs:
        note = jobs[0].experiment.tracking.note
        parent.tags({NOTE: sweep_description((folder / "comparison.md").read_text(), command(), note)})
    parent.tags({"failed": str(sum(job.exit_code not in (None, DONE) for job in jobs))})
    status = "FINISHED"
    if code != DONE:
        status = "KILLED" if code in STOPPED else "FAILED"
    parent.status(status)
    flush(parent, code == DONE, console)
    parent.close()
    console.log(f"{'time':11} {time.monotonic() - process_started():.1f} s for {len(comparison.runs)} jobs: {status}")
    return status


def is_sent(folder: Path, jobs: Iterable[Path], tracking: TrackingSettings) -> bool:
    """Returns whether the store has everything of the sweep in `folder` and of its jobs, in theirs."""
    if tracking.kind == "off":
        return True
    journals = [Journal(place) for place in (folder, *jobs)]
    return all(journal.is_closed for journal in journals if journal.run_id is not None)
