"""The earlier sweep that a command resumes, if any."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SweepSettings
from pipeline.paths import shorter
from pipeline.provenance.source_digest import Sources, new_for_other_code
from pipeline.runs.journal import NAME, Journal
from pipeline.sweep.index import find_sweep, read_index, sweep_folders
from stages.errors import UserError


class Work(Protocol):
    """The jobs of a sweep or a search, as far as they decide which earlier one it resumes."""

    kind: str
    unit: str
    identity: str
    """Equal for the same jobs."""
    total: int
    """The largest number of jobs."""
    sources: Sources
    settings: SweepSettings

    @property
    def first(self) -> Experiment:
        """The experiment of a job."""


def to_resume(session: Work, log: Callable[[str], None]) -> Path | None:
    """Return the folder of the sweep that `resume` means; None for a new one.

    A sweep that has finished is resumed if more jobs or stages are requested now, or if MLflow does not have all of it.

    Args:
        session: The jobs to run.
        log: Gets a line about each index that cannot be read, and the reason if the same jobs are not resumed.

    Raises:
        UserError: If `resume` names a sweep with other jobs.
    """
    choice, outputs = session.first.resume, session.first.outputs
    if choice == "never":
        return None
    if choice != "auto":
        folder = find_sweep(choice, outputs)
        if folder is None or read_index(folder).facts.get("identity") != session.identity:
            problem = f"resume={choice} is not a {session.kind} with these {session.unit}s"
            raise UserError(problem, f"auto, never, or a folder in {shorter(outputs / 'sweeps')}", "resume=auto")
        return folder
    for folder in reversed(sweep_folders(outputs)):
        try:
            index = read_index(folder)
        except UserError as error:
            log(f"warning: {error}; this sweep is skipped")
            continue
        if index.facts.get("identity") == session.identity:
            if index.has_all(session.total, session.settings.finish) and _is_sent(folder, session.first):
                return None
            if index.facts.get("code") == session.sources.digest:
                return folder
            log(new_for_other_code(session.sources, folder, folder.name, session.kind))
            return None
    return None


def _is_sent(folder: Path, first: Experiment) -> bool:
    """Return whether the store has everything of a sweep and its jobs, if they are tracked."""
    journals = [Journal(path.parent) for path in (*folder.glob(NAME), *folder.glob(f"*/{NAME}"))]
    return first.tracking.kind == "off" or all(journal.is_closed for journal in journals if journal.run_id is not None)
