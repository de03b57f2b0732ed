"""Claim the folder of a run: afterwards one process owns the run, and the same command finds it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pipeline.config.experiment import Experiment
from pipeline.config.names import split_override
from pipeline.config.schemas import SQLITE
from pipeline.decide.decision import Decision, New
from pipeline.execute.surroundings import place_tags
from pipeline.provenance.code_state import versions
from pipeline.provenance.identity import COMMAND_SETTINGS, is_among
from pipeline.redaction import redact_overrides
from pipeline.runs.facts import Facts
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.lock import LockedError, locked
from pipeline.runs.summary import Summary
from stages.settings.ranges import quoted


@contextmanager
def claimed(decision: Decision, is_supervised: bool = False, supervises: bool = False) -> Iterator[Summary | None]:
    """Claim the folder of `decision` for the block; yield the summary of the run if it resumes one.

    Args:
        decision: What to do.
        is_supervised: Whether another process has locked the folder for this one.
        supervises: Whether this process only starts and watches the processes that write the run.

    Raises:
        UserError: If another process works on the run or has finished it.
    """
    with ExitStack() as held:
        if isinstance(decision.start, New) and decision.part is None and not is_supervised:
            held.enter_context(_no_other_starts(decision))
        claim = decision.folder.claimed(first_summary(decision), is_supervised, supervises)
        with claim as before:
            held.close()
            yield before


@contextmanager
def _no_other_starts(decision: Decision) -> Iterator[None]:
    """Prevent other commands from starting a run within the block. Afterwards they see this run.

    Raises:
        LockedError: If the same command has started a run since this one was decided.
    """
    experiment = decision.experiment
    (experiment.outputs / "runs").mkdir(parents=True, exist_ok=True)
    with locked(experiment.outputs / "runs"):
        if experiment.resume == "auto":
            last = Runs(experiment.outputs).latest(experiment.name, decision.identity)
            is_same = last is not None and (last.status, last.code) == ("RUNNING", decision.sources.digest)
            if last is not None and is_same and RunFolder(last.folder).is_locked:
                raise LockedError(last.folder)
        yield


def first_summary(decision: Decision) -> Summary:
    """Return the first summary of the run of `decision`, for a run that does not resume another."""
    experiment = decision.experiment
    return Summary(
        run_id=None,
        status="RUNNING",
        name=experiment.name,
        folder=decision.folder.path,
        choices=experiment.choices,
        overrides=recorded_overrides(experiment),
        versions=versions(),
        identity=decision.identity,
        code=decision.sources.digest,
        facts=Facts(seed=experiment.seed, others={**place_tags()}),
    )


def recorded_overrides(experiment: Experiment) -> list[str]:
    """Return the overrides of a run to record: without settings that concern only the command, and without secrets."""
    texts = [text for text in experiment.overrides if not is_among(split_override(text)[0], COMMAND_SETTINGS)]
    uri = experiment.tracking.uri or ""
    if uri.startswith(SQLITE):  # the absolute path, as the next command may run in another folder
        texts = [f"tracking.uri={quoted(uri)}" if split_override(text)[0] == "tracking.uri" else text for text in texts]
    return redact_overrides(texts)
