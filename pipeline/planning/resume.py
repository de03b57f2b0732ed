"""The run that a command resumes or forks, or the decision to start a new one."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.experiment import Experiment
from pipeline.config.keys import split_override
from pipeline.config.schemas import no_fork
from pipeline.console import Console
from pipeline.paths import new_folder_name, shorter
from pipeline.planning.job import Job, Predecessor
from pipeline.provenance.identity import (
    WITHOUT_EFFECT,
    as_override,
    differing,
    identity,
    relevant_settings,
    settings_of,
)
from pipeline.provenance.source_digest import new_for_other_code, sources
from pipeline.run_folder.lock import LOCK, locked, share
from pipeline.run_folder.runs import Runs, read_run
from pipeline.run_folder.settle import is_unsent
from pipeline.run_folder.summary import NAME, Summary
from stages.checkpoints.names import can_start
from stages.errors import UserError
from stages.settings.places import regular_file
from stages.settings.train import TrainSettings

CHANGEABLE = ("strategy",)
"""Settings that may also differ in a run that is resumed by its id, in addition to those without an effect."""


def resolve(job: Job, console: Console) -> Job:
    """Returns `job` with its predecessor. The order is important:

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
        previous = unfinished_in(job.folder, console.warn)
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
        return replace(job, predecessor=Predecessor(forked, is_fork=True))
    if any(split_override(override)[0] == "fork_weights" for override in job.overrides):
        raise no_fork(experiment.fork_weights)
    return job


def new_folder(experiment: Experiment) -> Path:
    """Returns the folder of a new run, which does not exist yet."""
    return experiment.outputs / "runs" / experiment.name / new_folder_name(experiment.outputs)


@contextmanager
def claimed(job: Job, supervises: bool = False) -> Iterator[Job]:
    """Locks the folder of `job`, a new one where it has none, and yields `job` with the run that it finds there.

    All of a run is written within this block. The summary is read in it, too, as `resolve` has looked before another
    process may have ended the run. A new folder in which nothing has begun is removed.

    Args:
        supervises: whether the run is written by processes that this one starts, which claim the folder, too.

    Raises:
        UserError: where another process works there or has finished the run, or the folder cannot be made.
    """
    folder = job.folder or new_folder(job.experiment)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise UserError(f"no run can be begun in {folder} ({error.strerror})", "room to write in") from error
    try:
        with locked(folder, shared=job.is_supervised) as lock:
            if supervises:
                share(lock)
            run = read_run(folder)
            if run is not None and run.status == "FINISHED":
                raise UserError(f"{shorter(folder)} has finished meanwhile", "a run that has not", "resume=never")
            yield replace(job, folder=folder, is_supervised=supervises or job.is_supervised).resuming(run)
    finally:
        if is_new and not any([*folder.glob(NAME), *folder.glob("*.log")]):
            shutil.rmtree(folder, ignore_errors=True)


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
    if run.overrides:
        console.log(f"with its overrides, unless this command sets others: {' '.join(run.overrides)}")


def unfinished_in(folder: Path, warn: Callable[[str], None] = lambda line: None) -> Summary | None:
    """Returns the unfinished run in `folder`, or None; calls `warn` for each damaged file."""
    summary = read_run(folder, warn)
    return None if summary is None or summary.status == "FINISHED" else summary


def has_finished(folder: Path) -> bool:
    """Returns whether `folder` holds a run that is FINISHED."""
    summary = read_run(folder)
    return summary is not None and summary.status == "FINISHED"


def check_same(experiment: Experiment, run: Summary) -> None:
    """Raises UserError for the first setting of `experiment` that differs from `run`'s."""
    path = Path(run.folder) / "config.yaml"
    if not path.is_file():
        return
    ignored = WITHOUT_EFFECT + CHANGEABLE
    try:
        before_all = OmegaConf.to_container(OmegaConf.load(regular_file(path)))
        before = relevant_settings(before_all, ignored)
    except (OSError, ValueError, AttributeError, yaml.YAMLError, OmegaConfBaseException) as error:
        if run.identity == identity(experiment):
            return
        raise UserError(
            f"resume={experiment.resume}: {shorter(path)} is damaged, so its settings cannot be compared with these",
            "the settings of the run, unchanged",
            f"fork={experiment.resume}",
        ) from error
    now = settings_of(experiment, ignored)
    if settings_of(experiment) == relevant_settings(before_all, WITHOUT_EFFECT) and run.identity != identity(
        experiment
    ):
        raise UserError(
            f"resume={experiment.resume}: a setting whose value is masked (***) was another",
            "the settings of the run, unchanged",
            f"fork={experiment.resume}",
        )
    for name in differing(before, now):
        raise UserError(
            f"resume={experiment.resume}: {name} was {before.get(name)} and is {now.get(name)}",
            f"the settings of the run (its strategy may change), or a new run: fork={experiment.resume}",
            as_override(name, before.get(name)),
        )


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
    try:
        document = OmegaConf.load(regular_file(Path(run.folder) / "config.yaml"))
        before = relevant_settings(OmegaConf.to_container(document), ())
    except Exception:  # damaged: the checkpoint is compared when it is restored
        return
    now = settings_of(experiment, ())
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
    if was == "train=fit" and before.get("optimizer.ema_use") and experiment.fork_weights == "last":
        raise UserError(
            f"fork={experiment.fork} with fork_weights=last: train=fit has left the EMA in its weights",
            "fork_weights=best, or a run that was trained by train=loop",
            "fork_weights=best",
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
