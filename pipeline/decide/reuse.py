"""Runs that start with the results of another run: `from=<stage> run=<run>`."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.config.experiment import Experiment
from pipeline.decide.differences import refuse_differing, settings_of_both
from pipeline.decide.plan import TRAIN, PlannedStage, after_training, make_plan, mark_needed
from pipeline.decide.resume import MAY_DIFFER_IF_RESUMED
from pipeline.runs.finding import Runs
from pipeline.runs.summary import Summary
from pipeline.tracking.models import RESULTS
from stages.errors import UserError
from stages.settings.places import regular_folder
from stages.settings.results import EvaluateSettings

MAY_DIFFER_IF_REUSED = (
    *MAY_DIFFER_IF_RESUMED,
    "from", "run", "fork", "fork_weights", "deterministic", "pipeline", "data", "load", "model.weights",
)  # fmt: skip
"""Settings that may differ from the run whose results are reused, in addition to the settings of the stages
that run."""


def reused_run(experiment: Experiment) -> Summary | None:
    """Return the run whose results `experiment` starts with, or None."""
    return Runs(experiment.outputs).find(experiment.run, "run") if experiment.run is not None else None


def plan_with(experiment: Experiment, run: Summary | None) -> tuple[PlannedStage, ...]:
    """Return the stages of `experiment` in order, and which of them reuse the results of `run` or are skipped.

    A stage before `from` is reused if the run has saved its result. Otherwise it runs again if a later stage needs its
    result. Training never runs again.

    Raises:
        UserError: If there is no such stage, training would run again, or the run has different settings.
    """
    plan = make_plan(experiment)
    if run is None:
        return plan
    names = [stage.name for stage in plan]
    begins = after_training(experiment) if TRAIN in names else names[1:]
    if experiment.from_stage not in begins:
        problem = "would train the model again" if experiment.from_stage in names else "is not a stage of `pipeline`"
        raise UserError(f"from={experiment.from_stage} {problem}", begins, f"from={begins[0] if begins else '…'}")
    first = names.index(str(experiment.from_stage))
    try:
        results = regular_folder(run.folder / RESULTS)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", "the unchanged results of the run") from error
    saved = [
        replace(stage, saved=place if (place := results / stage.name).is_dir() else None) for stage in plan[:first]
    ]
    needed = mark_needed([*saved, *plan[first:]], first)
    if any(stage.name == TRAIN and stage.is_needed and stage.saved is None for stage in needed):
        raise UserError(
            f"run={experiment.run} has no saved result of its stage {TRAIN} (status: {run.status})",
            f"a run that completed this stage and has a folder {RESULTS}/",
            f"resume={experiment.run}",
        )
    _refuse_other_settings(experiment, run, needed, first)
    return tuple(needed)


def _refuse_other_settings(experiment: Experiment, run: Summary, plan: Sequence[PlannedStage], first: int) -> None:
    running = [stage.name for stage in plan if not stage.is_needed or stage not in plan[:first]]
    free = {name for stage in running for name in (stage, experiment.groups[stage])}
    before, now = settings_of_both(run, experiment, (*MAY_DIFFER_IF_REUSED, *free))
    expected = "the same settings as that run, except for the data, the strategy and the stages that run again"
    refuse_differing(f"run={experiment.run}", before, now, expected, f"fork={experiment.run}")


def with_compared_run(experiment: Experiment) -> Experiment:
    """Return `experiment` with the folder of the run that `evaluate.against` names.

    Raises:
        UserError: If there is no such run, or it has no predictions.
    """
    settings = experiment.of("evaluate", EvaluateSettings)
    if settings is None or settings.against is None:
        return experiment
    from stages.evaluation.predictions import check_other  # imports pyarrow, which takes part of a second

    folder = Runs(experiment.outputs).find(settings.against, "evaluate.against").folder
    check_other(folder, settings.against)
    resolved = replace(settings, against=str(folder))
    return replace(experiment, settings={**experiment.settings, "evaluate": resolved})
