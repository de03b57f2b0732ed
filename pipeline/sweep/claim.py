"""Find or create the folder of a sweep, and lock it for this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.paths import new_folder_name, shorter
from pipeline.provenance.source_digest import new_for_other_code
from pipeline.runs.journal import NAME, Journal
from pipeline.runs.lock import locked
from pipeline.sweep.index import find_sweep, read_index, sweep_folders
from pipeline.sweep.source import Work
from stages.errors import UserError


@contextmanager
def claimed_sweep(work: Work, at_a_time: int, console: Console) -> Iterator[Path]:
    """Lock the folder of the sweep that is resumed, or a new one, for this process; yield it.

    Args:
        work: The jobs to run.
        at_a_time: How many of them run at the same time.
        console: Prints a line with the name of the sweep and its number of jobs.

    Raises:
        UserError: If `resume` names a sweep with other jobs, or if another process runs this sweep.
    """
    resumed, outputs = to_resume(work, console.log), work.experiments[0].outputs
    work.announce(console, is_new=resumed is None)
    folder = resumed or outputs / "sweeps" / new_folder_name(outputs)
    folder.mkdir(parents=True, exist_ok=True)
    begins = f"{'resuming ' if resumed else ''}{work.kind} {folder.name}: {work.total:,} {work.unit}"
    console.log(begins + "s" * (work.total != 1) + (f", {at_a_time} at a time" if at_a_time > 1 else ""))
    with locked(folder):
        if resumed and to_resume(work, lambda line: None) != resumed:
            problem = f"{shorter(resumed)} was finished by another process"
            raise UserError(problem, "an unfinished sweep", "resume=never")
        work.sources.write(folder)
        yield folder


def to_resume(work: Work, log: Callable[[str], None]) -> Path | None:
    """Return the folder of the sweep to resume; None to begin a new one.

    A finished sweep is resumed if more jobs or stages are requested now, or if MLflow lacks some of its records.

    Args:
        work: The jobs to run.
        log: Gets a line about each sweep whose index cannot be read, and a line if a sweep of the same jobs is not
            resumed because the code has changed.

    Raises:
        UserError: If `resume` names a sweep with other jobs.
    """
    first = work.experiments[0]
    choice, outputs = first.resume, first.outputs
    if choice == "never":
        return None
    if choice != "auto":
        folder = find_sweep(choice, outputs)
        if folder is None or read_index(folder).facts.get("identity") != work.identity:
            problem = f"resume={choice} is not a {work.kind} with these {work.unit}s"
            raise UserError(problem, f"auto, never, or a folder in {shorter(outputs / 'sweeps')}", "resume=auto")
        return folder
    for folder in reversed(sweep_folders(outputs)):
        try:
            index = read_index(folder)
        except UserError as error:
            log(f"warning: {error}; this sweep is skipped")
            continue
        if index.facts.get("identity") == work.identity:
            if index.has_all(work.total, work.settings.finish) and _is_sent(folder, first):
                return None
            if index.facts.get("code") == work.sources.digest:
                return folder
            log(new_for_other_code(work.sources, folder, folder.name, work.kind))
            return None
    return None


def _is_sent(folder: Path, first: Experiment) -> bool:
    """Return whether the store has all records of a sweep and its jobs, or whether they are not tracked."""
    journals = [Journal(path.parent) for path in (*folder.glob(NAME), *folder.glob(f"*/{NAME}"))]
    return first.tracking.kind == "off" or all(journal.is_closed for journal in journals if journal.is_tracked)
