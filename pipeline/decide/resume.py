"""The earlier run that a command resumes, if any."""

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import TrackingSettings
from pipeline.decide.differences import refuse_differing, settings_of_both
from pipeline.decide.notes import Notes
from pipeline.paths import shorter
from pipeline.provenance.identity import WITHOUT_EFFECT
from pipeline.provenance.source_digest import new_for_other_code, sources
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary
from stages.errors import UserError

MAY_DIFFER_IF_RESUMED = (*WITHOUT_EFFECT, "strategy")
"""Settings that may differ when a run is resumed by its id."""


def run_to_resume(experiment: Experiment, identity: str, notes: Notes) -> Summary | None:
    """Return the run that `resume` names, or None for a new run.

    `resume=<run>` names a run, which must have the same settings. `resume=auto` means the last run with the same
    settings and code, unless it has finished, printed its results and uploaded all records.

    Raises:
        UserError: If the named run cannot be resumed.
    """
    if experiment.resume == "never":
        return None
    if experiment.resume == "auto":
        return _last_run(experiment, identity, notes)
    return _named_run(experiment, identity)


def _last_run(experiment: Experiment, identity: str, notes: Notes) -> Summary | None:
    run = Runs(experiment.outputs, notes.warn).latest(experiment.name, identity)
    if run is None or _is_over(run, experiment.tracking):
        return None
    code = sources(experiment)
    if run.code == code.digest:
        return run
    folder = shorter(run.folder)
    if run.status != "FINISHED":
        notes.log(new_for_other_code(code, run.folder, folder, "run"))
    elif is_unsent(run, experiment.tracking):
        notes.warn(f"part of {folder} is not in MLflow yet; `python -m pipeline sync {folder}` sends it")
    return None


def _named_run(experiment: Experiment, identity: str) -> Summary:
    text = experiment.resume
    run = Runs(experiment.outputs).find(text, "resume")
    if _is_over(run, experiment.tracking):
        problem = f"resume={text}: this run has already finished"
        raise UserError(problem, "a run that was interrupted", f"fork={text} train.epochs=<more>")
    if run.status != "FINISHED" and run.identity != identity:
        before, now = settings_of_both(run, experiment, MAY_DIFFER_IF_RESUMED)
        expected = f"the same settings as that run (except the strategy), or a new run with fork={text}"
        refuse_differing(f"resume={text}", before, now, expected)
    return run


def _is_over(run: Summary, tracking: TrackingSettings) -> bool:
    """Return whether a run has finished, printed its results and uploaded all records."""
    return run.status == "FINISHED" and not run.ending and not is_unsent(run, tracking)


def is_unsent(run: Summary, tracking: TrackingSettings) -> bool:
    """Return whether the store misses records of a run; False under `tracking=off`."""
    return tracking.kind != "off" and RunFolder(run.folder).is_unsent
