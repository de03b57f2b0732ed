"""Earlier runs: the one that a command resumes or forks, whose results it begins with, or that it is compared with."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.checks.registry import check_rules
from pipeline.config.experiment import Experiment
from pipeline.config.keys import split_override
from pipeline.config.schemas import no_fork
from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.planning.job import Job
from pipeline.planning.plan import PlannedStage, left_out, make_plan, without_unneeded
from pipeline.provenance.identity import (
    WITHOUT_EFFECT,
    as_override,
    differing,
    identity,
    relevant_settings,
    settings_of,
)
from pipeline.provenance.source_digest import new_for_other_code, sources
from pipeline.run_folder.runs import Runs, read_run
from pipeline.run_folder.settle import is_unsent
from pipeline.run_folder.summary import Summary
from pipeline.tracking.run_copy import RESULTS
from stages.checkpoints.names import can_start
from stages.errors import UserError
from stages.settings.places import regular_file
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.train import TrainSettings

CHANGEABLE = ("strategy",)
"""Settings that may also differ in a run that is resumed by its id, in addition to those without an effect."""


def resolve(job: Job, console: Console) -> Job:
    """Returns `job` with the run that it resumes or forks. The order is important:

    1. A job of a sweep resumes the run in its own folder, unless that has finished.
    2. `resume=<run>` resumes that run, whose settings must be the same.
    3. `resume=auto` resumes the last run of the same settings and code, unless that has finished.
    4. `fork=<run>` starts a new run from the weights of that one.
    5. Otherwise a new run starts from scratch.

    A finished run with unsent records is "resumed", too: these are sent, and nothing else happens.

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
        if job.folder is None:
            _announce("resuming", previous, console)
        return job.resuming(previous)
    forked = forked_run(experiment)
    if forked is not None:
        _announce("forking", forked, console)
        return replace(job, forked=forked)
    if any(split_override(override)[0] == "fork_weights" for override in job.overrides):
        raise no_fork(experiment.fork_weights)
    return job


def _last_to_resume(experiment: Experiment, console: Console) -> Summary | None:
    """Returns the last run of the same settings and code, unless it is complete and sent."""
    run = Runs(experiment.outputs, console.warn).latest(experiment.name, identity(experiment))
    if run is None or (run.status == "FINISHED" and not is_unsent(run, experiment)):
        return None
    now = sources(experiment)
    if run.code == now.digest:
        return run
    folder = Path(run.folder)
    if run.status == "FINISHED":
        console.warn(
            f"the store misses part of {shorter(folder)}; `python -m pipeline.sync {shorter(folder)}` sends it"
        )
    else:
        console.log(new_for_other_code(now, folder, shorter(folder), "run"))
    return None


def _named_by_resume(experiment: Experiment) -> Summary:
    """Returns the run of `resume=<run>`."""
    run = Runs(experiment.outputs).find(experiment.resume, "resume")
    if run.status != "FINISHED":
        check_same(experiment, run)
    elif not is_unsent(run, experiment):
        raise UserError(
            f"resume={experiment.resume} has finished",
            "a run that has not",
            f"fork={experiment.resume} train.epochs=<more>",
        )
    return run


def forked_run(experiment: Experiment, starts: bool = True) -> Summary | None:
    """Returns the run of `fork=<run>`, with whose weights the settings fit; None without one.

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
        raise UserError(f"fork={text} has no checkpoint in {shorter(folder)}", "a run that has one")
    check_fork(experiment, run)
    if starts:
        refuse_without_epochs(experiment, run)
    return run


def refuse_without_epochs(experiment: Experiment, run: Summary) -> None:
    """Raises UserError where a fork of `run`, which has finished, has no epoch left to train."""
    train = experiment.of("train", TrainSettings)
    begin = int(run.metrics.get("train/weights_epoch" if experiment.fork_weights == "best" else "train/last_epoch", 0))
    if train and begin >= train.all_epochs:
        raise UserError(
            f"train.epochs={train.epochs}, and {begin} are over where fork={experiment.fork} starts",
            f"more than {begin}",
            f"train.epochs={2 * begin}",
        )


def _announce(verb: str, run: Summary, console: Console) -> None:
    folder = shorter(Path(run.folder))
    if run.status == "FINISHED" and verb == "resuming":
        console.log(f"{folder} has finished, but the store misses part of it: sending the rest, nothing is trained")
        return
    console.log(f"{verb} {folder} (status: {run.status})")
    _show_overrides(run, console)


def _show_overrides(run: Summary, console: Console) -> None:
    if run.overrides:
        console.log(f"with its overrides, unless this command sets others: {' '.join(run.overrides)}")


def check_same(experiment: Experiment, run: Summary) -> None:
    """Refuse settings with which the result is another than that of `run`, but for another strategy."""
    if run.identity == identity(experiment):
        return
    option = f"resume={experiment.resume}"
    settings, start_new = "the settings of the run, unchanged", f"fork={experiment.resume}"
    ignored = WITHOUT_EFFECT + CHANGEABLE
    before, now = _recorded(run, option, ignored), settings_of(experiment, ignored)
    for name in differing(before, now):
        raise UserError(
            f"{option}: {name} was {before.get(name)} and is {now.get(name)}",
            f"the settings of the run (its strategy may change), or a new run: {start_new}",
            as_override(name, before.get(name)),
        )
    if _recorded(run, option, WITHOUT_EFFECT) == settings_of(experiment):
        raise UserError(f"{option}: a setting whose value is masked (***) was another", settings, start_new)


def _recorded(run: Summary, option: str, ignored: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a run by their dotted names, but those that are `ignored`.

    Args:
        option: that names the run, such as `resume=4d9eb298`.

    Raises:
        UserError: where they cannot be read.
    """
    path = Path(run.folder) / "config.yaml"
    try:
        return relevant_settings(OmegaConf.to_container(OmegaConf.load(regular_file(path))), ignored)
    except Exception as error:  # whatever is in the file
        raise UserError(
            f"{option}: {shorter(path)} cannot be read ({type(error).__name__}), so its settings cannot be compared",
            "a run whose files are whole",
            f"{option.partition('=')[0]}=<another run>",
        ) from error


_OF_DATA = ("data._target_", "data.name")
_OF_SPLITS = ("data.split_seed", "data.val_fraction", "data.test_fraction")
_CUT = ("stages.load.digits.digits", "stages.load.synthetic.synthetic")
"""Sources whose splits always are cut by these."""

_WITHOUT_VARIABLES = ("model.network.dropout", "model.network.arguments")
"""Settings of networks with which the variables may be the same."""


def check_fork(experiment: Experiment, run: Summary) -> None:
    """Raises UserError for a setting with which `experiment` has other data or variables than the run it forks.

    What only the data and the network themselves can tell is compared when they are there.
    """
    before, now = _recorded(run, f"fork={experiment.fork}", ()), settings_of(experiment, ())
    names = [name for name in _decisive(before, now) if name in differing(before, now)]
    if _variables(before) != _variables(now):
        names.append("precision.policy")
    _check_trainer(experiment, before, now)
    for name in names:
        raise UserError(
            f"fork={experiment.fork}: {name} was {before.get(name)} and is {now.get(name)}, with which its weights do "
            "not fit",
            "the data, the network and the dtype of the variables of that run; a new run from scratch may have others",
            "fork=null",
        )


_TRAINERS = {"stages.train.train": "train=loop", "stages.fit.fit": "train=fit"}


def _check_trainer(experiment: Experiment, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UserError where the other run was trained so that its checkpoint holds another state than this one's."""
    was, is_now = (_TRAINERS.get(str(settings.get("train._target_"))) for settings in (before, now))
    if was is not None and is_now is not None and was != is_now:
        raise UserError(
            f"fork={experiment.fork} was trained by {was}, and this is {is_now}, which keeps other state",
            f"{was}; or, for its weights alone, fork=null and model.weights=runs:/<its id>",
            was,
        )


def _decisive(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the settings that cannot differ."""
    names = list(_OF_DATA)
    if before.get("data._target_") in _CUT:
        names += _OF_SPLITS
    target = "model.network._target_"
    if all(str(settings.get(target)).startswith("stages.networks.") for settings in (before, now)):
        names += [target, *(name for name in now if name.startswith("model.network."))]
    return [name for name in dict.fromkeys(names) if not name.startswith(_WITHOUT_VARIABLES)]


def _variables(settings: Mapping[str, Any]) -> str:
    """Returns the dtype of the variables."""
    policy = str(settings.get("precision.policy"))
    return policy if policy in ("bfloat16", "float16", "float64") else "float32"


TRAIN = "train"
"""The stage that is never run again."""

NOT_REUSED = (*WITHOUT_EFFECT, "from", "run", "fork", "fork_weights", "deterministic", "strategy", "pipeline")
"""Settings that may differ from those of the run whose results are reused, in addition to the data's."""


def prepare(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Return the plan of an experiment, after all checks.

    Raises:
        UserError: before TensorFlow is imported and before anything is recorded.
    """
    check_rules(experiment)
    return plan_of(experiment)


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
    saved = [
        replace(stage, saved=place if (place := results / stage.name).is_dir() else None) for stage in plan[:first]
    ]
    needed = without_unneeded([*saved, *plan[first:]], first)
    _check_completed(needed[:first], run, experiment)
    _check_settings(needed, first, run, experiment)
    _check_alias(needed, experiment)
    return tuple(needed)


def refuse_skipped(experiment: Experiment, names: Iterable[str]) -> None:
    """Raises UserError for the first of `names`, dotted as they were typed, of a stage that `from` leaves out."""
    if experiment.run is None:
        return
    skipped = {name for stage in left_out(plan_of(experiment)) for name in (stage.name, experiment.groups[stage.name])}
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
    _show_overrides(run, console)
    first = [stage.name for stage in plan].index(str(experiment.from_stage))
    again = [stage.name for stage in plan[:first] if stage.action == "runs"]
    reused = [stage.name for stage in plan if stage.action == "reused"]
    saved = f"reused {', '.join(reused)}; " if reused else "nothing is reused; "
    console.log(f"{saved}these run again, as their results are not saved: {', '.join(again) or 'none'}")
    now = sources(experiment)
    if reused and run.code != now.digest:
        changed = now.changed(folder) or "files that its list does not name"
        console.warn(f"the code has changed since that run ({changed}): its results are reused as they are")


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
    if alias is not None and any(stage.name == "evaluate" for stage in left_out(plan)):
        raise UserError(
            f"export.alias={alias} with from={experiment.from_stage}: models are compared by their predictions",
            "from=evaluate, which makes them, or no alias",
            "from=evaluate",
        )


def _check_settings(plan: Sequence[PlannedStage], first: int, run: Summary, experiment: Experiment) -> None:
    """Raises UserError for the first setting that differs from the one with which a reused result was made."""
    free = {name for stage in [*plan[first:], *left_out(plan)] for name in (stage.name, experiment.groups[stage.name])}
    ignored = (*NOT_REUSED, "data", "load", *sorted(free))
    before = _recorded(run, f"run={experiment.run}", ignored)
    now = settings_of(experiment, ignored)
    reused = ", ".join(stage.name for stage in plan if stage.action == "reused")
    for name in differing(before, now):
        raise UserError(
            f"{name} was {before.get(name)} in run={experiment.run}, and is {now.get(name)}: {reused} were made with "
            "the former",
            "the run's settings; only data, strategy and stages that run may differ. To train with others, fork",
            f"fork={experiment.run}",
        )


def other_run(experiment: Experiment) -> Path | None:
    """Returns the folder of the run that this one is compared with; None where there is none.

    Raises:
        UserError: where there is no such run, or it has no predictions.
    """
    settings = experiment.of("evaluate", EvaluateSettings)
    if settings is None or settings.against is None:
        return None
    from stages.evaluation.against import check_other  # needs pyarrow, part of a second

    folder = Path(Runs(experiment.outputs).find(settings.against, "evaluate.against").folder)
    check_other(folder, settings.against)
    return folder
