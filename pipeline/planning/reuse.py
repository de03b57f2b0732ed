"""Earlier runs that a run needs: its results, from which it begins (`from=`, `run=`), or to compare with."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.planning.plan import PlannedStage, make_plan
from pipeline.provenance.identity import WITHOUT_EFFECT, differing, relevant_settings, settings_of
from pipeline.provenance.source_digest import sources
from pipeline.run_folder.runs import Runs
from pipeline.run_folder.summary import Summary
from pipeline.tracking.run_copy import RESULTS
from stages.errors import UserError
from stages.settings.places import regular_file
from stages.settings.results import EvaluateSettings, ExportSettings

TRAIN = "train"
"""The stage that is never run again."""

CHANGEABLE = (*WITHOUT_EFFECT, "from", "run", "fork", "fork_weights", "deterministic", "strategy", "pipeline")
"""Settings that may differ from those of the run whose results are reused, in addition to the data's."""


def plan_of(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Returns the stages of `experiment` in order; with `from` and `run`, which of them are reused or left out.

    A stage before `from` is reused where the run has saved its result; otherwise it runs again if a stage that is not
    left out takes its result. Training never does.

    Raises:
        UserError: where there is no such stage or run, training would run, or the run was made
            with other settings.
    """
    plan = make_plan(experiment)
    run = reused_run(experiment)
    if run is None:
        return plan
    names = [stage.name for stage in plan]
    begins = names[names.index(TRAIN) + 1 :] if TRAIN in names else names[1:]
    if experiment.from_stage not in begins:
        problem = "would train again" if experiment.from_stage in names else "is no stage of `pipeline`"
        raise UserError(f"from={experiment.from_stage} {problem}", begins, f"from={begins[0] if begins else '…'}")
    first = names.index(str(experiment.from_stage))
    results = Path(run.folder) / RESULTS
    saved = [replace(stage, saved=_saved(results / stage.name)) for stage in plan[:first]]
    needed = _needed([*saved, *plan[first:]], first)
    _check_completed(needed[:first], run, experiment)
    _check_settings(needed, first, run, experiment)
    _check_alias(needed, experiment)
    return tuple(needed)


def refuse_skipped(experiment: Experiment, names: Iterable[str]) -> None:
    """Raises UserError for the first of `names`, dotted as they were typed, of a stage that `from` leaves out."""
    if experiment.run is None:
        return
    skipped = {name for stage in _left_out(plan_of(experiment)) for name in (stage.name, experiment.groups[stage.name])}
    for name in names:
        stage = re.split(r"[./@]", name)[0]
        if stage in skipped:
            raise UserError(f"{name} has no effect: from={experiment.from_stage} leaves it out", "", f"from={stage}")


def reused_run(experiment: Experiment) -> Summary | None:
    """Returns the run whose results `experiment` begins with, or None."""
    return Runs(experiment.outputs).find(experiment.run, "run") if experiment.run is not None else None


def announce(experiment: Experiment, plan: Sequence[PlannedStage], console: Console) -> None:
    """Prints whose results are reused, and what of its code or data is another now."""
    run = reused_run(experiment)
    if run is None:
        return
    folder = Path(run.folder)
    console.log(f"beginning with {experiment.from_stage}, on the results of {shorter(folder)} (status: {run.status})")
    if run.overrides:
        console.log(f"with its overrides, unless this command sets others: {' '.join(run.overrides)}")
    first = [stage.name for stage in plan].index(str(experiment.from_stage))
    again = [stage.name for stage in plan[:first] if stage.action == "runs"]
    reused = [stage.name for stage in plan if stage.action == "reused"]
    saved = f"reused {', '.join(reused)}; " if reused else "nothing is reused; "
    console.log(f"{saved}these run again, as their results are not saved: {', '.join(again) or 'none'}")
    now = sources(experiment)
    if reused and run.code != now.digest:
        changed = now.changed(folder) or "files that its list does not name"
        console.warn(f"the code has changed since that run ({changed}): its results are reused as they are")


def _saved(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None


def _needed(plan: Sequence[PlannedStage], first: int) -> list[PlannedStage]:
    """Returns `plan` with the stages before `first` left out whose results no stage takes that is not."""
    wanted: set[str] = set()
    stages: list[PlannedStage] = []
    for index in reversed(range(len(plan))):
        stage = plan[index]
        is_needed = index >= first or stage.makes in wanted
        if is_needed:
            wanted = (wanted - {stage.makes}) | set(stage.inputs)
        stages.append(replace(stage, is_needed=is_needed))
    return stages[::-1]


def _check_completed(before: Sequence[PlannedStage], run: Summary, experiment: Experiment) -> None:
    """Raises UserError where the run has not saved its training, or ended before a needed stage."""
    lacking = [stage.name for stage in before if stage.name == TRAIN and stage.is_needed and stage.saved is None]
    for stage in before:
        outcome = run.stages.get(stage.name)
        if stage.action == "runs" and outcome is not None and outcome.status in ("skipped", "failed"):
            lacking.append(stage.name)
    if lacking:
        raise UserError(
            f"run={experiment.run} has no result of its stage {lacking[0]} (status: {run.status})",
            f"a run that has completed it, by a version that keeps {RESULTS}/",
            f"resume={experiment.run}",
        )


def _check_alias(plan: Sequence[PlannedStage], experiment: Experiment) -> None:
    """Raises UserError where an alias is to move to a model that nobody tests."""
    settings = experiment.of("export", ExportSettings)
    alias = settings.alias if settings else None
    if alias is not None and any(stage.name == "evaluate" for stage in _left_out(plan)):
        raise UserError(
            f"export.alias={alias} with from={experiment.from_stage}: models are compared by their predictions",
            "from=evaluate, which makes them, or no alias",
            "from=evaluate",
        )


def _check_settings(plan: Sequence[PlannedStage], first: int, run: Summary, experiment: Experiment) -> None:
    """Raises UserError for the first setting that differs from the one with which a reused result was made."""
    path = Path(run.folder) / "config.yaml"
    free = {name for stage in [*plan[first:], *_left_out(plan)] for name in (stage.name, experiment.groups[stage.name])}
    ignored = (*CHANGEABLE, "data", "load", *sorted(free))
    try:
        before = relevant_settings(OmegaConf.to_container(OmegaConf.load(regular_file(path))), ignored)
    except Exception as error:
        raise UserError(
            f"run={experiment.run}: {shorter(path)} cannot be read ({type(error).__name__}); it has the "
            "settings of its results",
            "a run with its configuration",
            "run=<another run>",
        ) from error
    now = settings_of(experiment, ignored)
    reused = ", ".join(stage.name for stage in plan if stage.action == "reused")
    for name in differing(before, now):
        raise UserError(
            f"{name} was {before.get(name)} in run={experiment.run}, and is {now.get(name)}: {reused} were made with "
            "the former",
            "the run's settings; only data, strategy and stages that run may differ. To train with others, fork",
            f"fork={experiment.run}",
        )


def _left_out(plan: Sequence[PlannedStage]) -> list[PlannedStage]:
    return [stage for stage in plan if not stage.is_needed]


SETTING = "evaluate.against"


def other_run(experiment: Experiment) -> Path | None:
    """Returns the folder of the run that this one is compared with; None where there is none.

    Raises:
        UserError: where there is no such run, or it has no predictions.
    """
    settings = experiment.of("evaluate", EvaluateSettings)
    if settings is None or settings.against is None:
        return None
    from stages.evaluation.against import check_other  # needs pyarrow, part of a second

    folder = Path(Runs(experiment.outputs).find(settings.against, SETTING).folder)
    check_other(folder, settings.against)
    return folder
