"""Debug runs: the experiment that checks another one, by `debug=fast`, `overfit` or `profile`.

It is an experiment like any other, with the same network, strategy and precision, whose settings say what is shorter.
So its configuration, recorded as always, is what ran; and its identity is another than that of the real run.
"""

import copy
from typing import Any

from omegaconf import DictConfig, open_dict

from pipeline.config.experiment import Experiment, read
from pipeline.config.schemas import DebugSettings, FastSettings, OverfitSettings, ProfileSettings
from stages.errors import UserError
from stages.settings.optimizer import StepSettings
from stages.settings.results import EvaluateSettings
from stages.settings.train import FitSettings, TrainSettings

TRAIN = "train"

OVERFIT_EPOCH = 10
"""Steps of an epoch on one batch, after which it is known whether its loss is low enough."""

_NOT_OVERFITTED = ("augment", "inspect")
"""Stages that an overfitted batch leaves out: it is not changed, and there is nothing else to look at."""


def debugged(experiment: Experiment) -> Experiment:
    """Returns the experiment that is to run: `experiment` itself, or the debug run that checks it.

    Raises:
        UserError: where such a debug run cannot work.
    """
    settings = experiment.debug
    if settings is None:
        return experiment
    _check(experiment, settings)
    document = copy.deepcopy(experiment.document)
    with open_dict(document):
        document.resume = "never"
        if isinstance(settings, FastSettings):
            _make_fast(document, experiment, settings)
        elif isinstance(settings, OverfitSettings):
            _make_overfit(document, experiment, settings)
        elif isinstance(settings, ProfileSettings):
            _make_profile(document, experiment, settings)
    return read(document, experiment.choices, experiment.config_dirs)


def _check(experiment: Experiment, settings: DebugSettings) -> None:
    typed = f"debug={settings.kind}"
    for name, value in (("resume", experiment.resume), ("fork", experiment.fork), ("from", experiment.from_stage)):
        if value not in (None, "auto", "never"):
            raise UserError(
                f"{typed} with {name}={value}: a debug run starts from scratch",
                "one of them, or the settings of that run, typed again",
                typed,
            )
    if "dataset" not in experiment.pipeline.values():
        raise UserError(
            f"{typed} shortens the data set, and no stage makes a `dataset`", experiment.pipeline, "debug=none"
        )
    if experiment.of(TRAIN, TrainSettings) is None and not isinstance(settings, FastSettings):
        raise UserError(
            f"{typed} needs a stage {TRAIN} of this project", ("debug=fast", "train=loop", "train=fit"), "debug=fast"
        )


def _make_fast(document: DictConfig, experiment: Experiment, settings: FastSettings) -> None:
    train = experiment.of(TRAIN, TrainSettings)
    evaluate = experiment.of("evaluate", EvaluateSettings)
    if train:
        _shorten_training(document, train, epochs=1, fine_tune_epochs=1)
        if evaluate:
            document.evaluate.batch_size = min(evaluate.batch_size or train.batch_size, train.batch_size)
    _shorten_data(document, experiment, settings.steps)


def _make_overfit(document: DictConfig, experiment: Experiment, settings: OverfitSettings) -> None:
    train = experiment.settings[TRAIN]
    per_epoch = min(OVERFIT_EPOCH, settings.steps)
    _shorten_training(document, train, epochs=settings.steps // per_epoch, fine_tune_epochs=0)
    document.train.label_smoothing = 0.0
    document.train.class_weights = None
    document.train.early_stopping_patience = 0
    document.train.callbacks.append(
        {"_target_": "stages.callbacks.debug.OneBatch", "enough": settings.loss},
    )
    _shorten_data(document, experiment, per_epoch, same_batch=True)
    after = _stages_after_training(experiment)
    _leave_out(document, *_NOT_OVERFITTED, *after)
    _add_stage(document, "overfit", "verdict", loss=settings.loss, steps_per_epoch=per_epoch)


def _make_profile(document: DictConfig, experiment: Experiment, settings: ProfileSettings) -> None:
    train = experiment.settings[TRAIN]
    _shorten_training(document, train, epochs=2, fine_tune_epochs=0)
    document.train.early_stopping_patience = 0
    document.train.callbacks.append(
        {"_target_": "stages.callbacks.debug.Profiler", "steps": settings.traced},
    )
    _shorten_data(document, experiment, settings.steps)
    _leave_out(document, *_stages_after_training(experiment))
    _add_stage(document, "profiling", "profile")


def _shorten_training(document: DictConfig, train: TrainSettings, epochs: int, fine_tune_epochs: int) -> None:
    document.train.epochs = epochs
    document.train.fine_tune_epochs = fine_tune_epochs if train.fine_tune_epochs else 0
    document.schedule.warmup_epochs = min(train.schedule.warmup_epochs, epochs / 2)
    if isinstance(train.schedule, StepSettings):
        document.schedule.decay_epochs = [min(epoch, epochs / 2) for epoch in train.schedule.decay_epochs]
    if isinstance(train, FitSettings):
        document.train.steps_per_call = None  # one that divides the steps of the real epoch need not divide these


def _shorten_data(document: DictConfig, experiment: Experiment, steps: int, same_batch: bool = False) -> None:
    """Adds the stage that shortens the data set, behind the first that makes one."""
    batch_size = getattr(experiment.settings.get(TRAIN), "batch_size", 64)
    document.shorten = {
        "_target_": "stages.debug.shorten",
        "steps": steps,
        "batch_size": batch_size,
        "same_batch": same_batch,
    }
    stages: dict[str, Any] = {}
    for name, makes in experiment.pipeline.items():
        stages[name] = makes
        if makes == "dataset" and "shorten" not in stages:
            stages["shorten"] = makes
    document.pipeline = stages


def _stages_after_training(experiment: Experiment) -> list[str]:
    names = list(experiment.pipeline)
    return names[names.index(TRAIN) + 1 :]


def _leave_out(document: DictConfig, *stages: str) -> None:
    for name in stages:
        if name in document.pipeline:
            document.pipeline[name] = None


def _add_stage(document: DictConfig, name: str, makes: str, **settings: Any) -> None:
    document[name] = {"_target_": f"stages.debug.{name}", **settings}
    document.pipeline[name] = makes
