"""Earlier runs: the one that a command resumes, forks, begins with the results of, or is compared with.

Each use asks one question: which settings and code must be equal, and what is told where they are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.checks.registry import check_rules
from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.planning.job import Job
from pipeline.planning.plan import TRAIN, PlannedStage, after_training, make_plan, mark_needed
from pipeline.provenance.identity import (
    WITHOUT_EFFECT,
    as_override,
    differing,
    identity,
    is_among,
    relevant_settings,
    settings_of,
)
from pipeline.provenance.source_digest import new_for_other_code, sources
from pipeline.run_folder.runs import Runs, read_config, read_run
from pipeline.run_folder.summary import Summary
from pipeline.tracking.models import RESULTS
from pipeline.tracking.pending import is_unsent
from stages.checkpoints.names import can_start
from stages.errors import UserError
from stages.settings.places import regular_folder
from stages.settings.results import EvaluateSettings
from stages.settings.train import TrainSettings

RESUMED_WITH = (*WITHOUT_EFFECT, "strategy")
"""Settings that may differ in a run that is resumed by its id."""

REUSED_WITH = (
    *RESUMED_WITH, "from", "run", "fork", "fork_weights", "deterministic", "pipeline", "data", "load", "model.weights",
)  # fmt: skip
"""Settings that may differ from those of the run whose results are reused, beside those of the stages that run."""

NETWORK = "model.network._target_"

FORKED_WITH = (
    "data._target_", "data.name", "data.split_seed", "data.val_fraction", "data.test_fraction", "train._target_",
    NETWORK,
)  # fmt: skip
"""Settings that may not differ from those of the run that is forked: of its data and variables.

What only the data and the network themselves can tell is compared with the checkpoint when they are there.
"""


def resolve(job: Job, console: Console) -> Job:
    """Return `job` with the run that it resumes or forks. The order is important:

    1. A job of a sweep resumes the run in its own folder, unless that has finished.
    2. `resume=<run>` resumes that run, whose settings must be the same.
    3. `resume=auto` resumes the last run of the same settings and code, unless that has finished.
    4. `fork=<run>` starts a new run from the weights of that one.
    5. Otherwise a new run starts from scratch.

    A finished run is "resumed", too, if it has unsent records or was killed before it printed its results: these are
    sent and printed, and nothing else happens.

    Raises:
        UserError: where the named run cannot be resumed or forked.
    """
    experiment = job.experiment
    previous = None
    if job.folder is not None:
        run = read_run(job.folder, console.warn)
        previous = None if run is None or run.status == "FINISHED" else run
    elif experiment.resume == "auto":
        previous = _last_to_resume(experiment, console)
    elif experiment.resume != "never":
        previous = _named_by_resume(experiment)
    if previous is not None:
        if previous.status == "FINISHED":
            is_sent = not is_unsent(previous, experiment.tracking)
            what = "" if is_sent else ", but part of it is not in MLflow yet: sending the rest"
            console.log(f"{shorter(Path(previous.folder))} has already finished{what}; nothing to train")
            return job.resuming(previous)
        is_started = can_start(Path(previous.folder) / "checkpoints")
        if experiment.fork is not None and not is_started:  # it was stopped before it had the other's weights
            job = replace(job, forked=forked_run(experiment))
        if job.folder is None:
            _show("resuming", previous, console, FROM_SCRATCH if _begins_again(previous, experiment) else "")
        return job.resuming(previous)
    forked = forked_run(experiment)
    if forked is not None:
        _show("forking", forked, console)
        return replace(job, forked=forked)
    return job


FROM_SCRATCH = ", from epoch 1, because there is no checkpoint"


def _begins_again(run: Summary, experiment: Experiment) -> bool:
    """Return whether a run that is resumed trains from its first epoch: it has neither trained nor a checkpoint."""
    trained = run.stages.get(TRAIN)
    is_over = trained is not None and trained.status in ("ran", "reused")
    trains = experiment.of("train", TrainSettings) is not None and experiment.from_stage is None
    is_new = experiment.fork is None and not can_start(Path(run.folder) / "checkpoints")
    return trains and is_new and not is_over


def _show(doing: str, run: Summary, console: Console, where: str = "") -> None:
    console.log(f"{doing} {shorter(Path(run.folder))} (status: {run.status}){where}")
    if run.overrides:
        console.log(f"with the overrides {' '.join(run.overrides)}")


def _last_to_resume(experiment: Experiment, console: Console) -> Summary | None:
    """Return the last run of the same settings and code, unless it is complete and sent."""
    run = Runs(experiment.outputs, console.warn).latest(experiment.name, identity(experiment))
    if run is None or _is_over(run, experiment):
        return None
    now = sources(experiment)
    if run.code == now.digest:
        return run
    if run.status == "FINISHED" and not is_unsent(run, experiment.tracking):
        return None
    if run.status == "FINISHED":
        folder = shorter(Path(run.folder))
        console.warn(f"part of {folder} is not in MLflow yet; `python -m pipeline sync {folder}` sends it")
    else:
        console.log(new_for_other_code(now, Path(run.folder), shorter(Path(run.folder)), "run"))
    return None


def _is_over(run: Summary, experiment: Experiment) -> bool:
    """Return whether a run has finished, printed its results and sent everything."""
    return run.status == "FINISHED" and not run.ending and not is_unsent(run, experiment.tracking)


def _named_by_resume(experiment: Experiment) -> Summary:
    """Return the run of `resume=<run>`."""
    text = experiment.resume
    run = Runs(experiment.outputs).find(text, "resume")
    if _is_over(run, experiment):
        problem = f"resume={text}: this run has already finished"
        raise UserError(problem, "a run that was interrupted", f"fork={text} train.epochs=<more>")
    if run.status != "FINISHED" and run.identity != identity(experiment):
        before, now = _both(run, experiment, RESUMED_WITH)
        expected = f"the same settings as that run (except the strategy), or a new run with fork={text}"
        _refuse_differing(f"resume={text}", before, now, expected)
    return run


def forked_run(experiment: Experiment, starts: bool = True) -> Summary | None:
    """Return the run of `fork=<run>`, with whose weights the settings fit; None without one.

    Args:
        starts: whether `experiment` is to start from it, which takes a checkpoint; one that has begun has its own.

    Raises:
        UserError: where it cannot be forked.
    """
    text = experiment.fork
    if text is None:
        return None
    run = Runs(experiment.outputs).find(text, "fork")
    folder = Path(run.folder)
    if starts and not can_start(folder / "checkpoints"):
        raise UserError(f"fork={text} has no checkpoint in {shorter(folder)}", "a run with a checkpoint")
    check_fork(experiment, run)
    if starts:
        refuse_without_epochs(experiment, run)
    return run


def refuse_without_epochs(experiment: Experiment, run: Summary) -> None:
    """Refuse a fork of `run`, which has finished, that has no epoch left to train."""
    train, begin = experiment.of("train", TrainSettings), epochs_before(experiment, run)
    if train and begin >= train.all_epochs:
        raise UserError(
            f"train.epochs={train.epochs} leaves nothing to train: fork={experiment.fork} starts after epoch {begin}",
            f"more than {begin}",
            f"train.epochs={2 * begin}",
        )


def epochs_before(experiment: Experiment, run: Summary | None) -> int:
    """Return the epochs of `run` that its fork begins after; 0 without one."""
    name = "train/weights_epoch" if experiment.fork_weights == "best" else "train/last_epoch"
    return int(run.metrics.get(name, 0)) if run is not None else 0


def check_fork(experiment: Experiment, run: Summary) -> None:
    """Refuse a setting with which `experiment` has other data or variables than the run it forks."""
    both = _both(run, experiment, ())
    is_ours = all(str(settings.get(NETWORK)).startswith("stages.networks.") for settings in both)
    compared = [name for name in FORKED_WITH if is_ours or name != NETWORK]  # one's own may have another name by now
    before, now = ({name: value for name, value in settings.items() if is_among(name, compared)} for settings in both)
    expected = "the same data, network and training stage as in that run, or a new run"
    _refuse_differing(f"fork={experiment.fork}", before, now, expected, "fork=null")


def prepare(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Return the plan of an experiment, after all checks.

    Raises:
        UserError: before TensorFlow is imported and before anything is recorded.
    """
    check_rules(experiment)
    return plan_of(experiment)


def plan_of(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Return the stages of `experiment` in order; with `from` and `run`, which of them are reused or left out.

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
    begins = after_training(experiment) if TRAIN in names else names[1:]
    if experiment.from_stage not in begins:
        problem = "would train the model again" if experiment.from_stage in names else "is not a stage of `pipeline`"
        raise UserError(f"from={experiment.from_stage} {problem}", begins, f"from={begins[0] if begins else '…'}")
    first = names.index(str(experiment.from_stage))
    try:
        results = regular_folder(Path(run.folder) / RESULTS)
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
    running = [stage.name for stage in needed if not stage.is_needed or stage not in needed[:first]]
    free = {name for stage in running for name in (stage, experiment.groups[stage])}
    before, now = _both(run, experiment, (*REUSED_WITH, *free))
    expected = "the same settings as that run, except for the data, the strategy and the stages that run again"
    _refuse_differing(f"run={experiment.run}", before, now, expected, f"fork={experiment.run}")
    return tuple(needed)


def reused_run(experiment: Experiment) -> Summary | None:
    """Return the run whose results `experiment` begins with, or None."""
    return Runs(experiment.outputs).find(experiment.run, "run") if experiment.run is not None else None


def announce(experiment: Experiment, plan: Sequence[PlannedStage], console: Console) -> None:
    """Print whose results are reused, and what of its code is another now."""
    run = reused_run(experiment)
    if run is None:
        return
    _show(f"starting with {experiment.from_stage}, from the results of", run, console)
    now = sources(experiment)
    if any(stage.action == "reused" for stage in plan) and run.code != now.digest:
        changed = now.changed(Path(run.folder)) or "files that were not recorded"
        console.warn(f"the code has changed since that run ({changed}), but its results are reused")


def other_run(experiment: Experiment) -> Path | None:
    """Return the folder of the run that this one is compared with; None where there is none.

    Raises:
        UserError: where there is no such run, or it has no predictions.
    """
    settings = experiment.of("evaluate", EvaluateSettings)
    if settings is None or settings.against is None:
        return None
    from stages.evaluation.predictions import check_other  # needs pyarrow, part of a second

    folder = Path(Runs(experiment.outputs).find(settings.against, "evaluate.against").folder)
    check_other(folder, settings.against)
    return folder


def _both(run: Summary, experiment: Experiment, ignored: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a run and of this one by their dotted names, but those that are `ignored`.

    And but those of a command that an older version had, such as `max_jobs`.
    """
    before = relevant_settings(OmegaConf.to_container(read_config(Path(run.folder)), resolve=True), ignored)
    before = {name: value for name, value in before.items() if "." in name or name in experiment.document}
    return before, settings_of(experiment, tuple(ignored))


def _refuse_differing(
    option: str, before: Mapping[str, Any], now: Mapping[str, Any], expected: str, fix: str | None = None
) -> None:
    """Refuse the first setting that differs; `fix`: what to type, None: the setting as it was."""
    for name in differing(before, now):
        fix = fix or as_override(name, before.get(name))
        raise UserError(f"{option}: {name} was {before.get(name)} and is now {now.get(name)}", expected, fix)
