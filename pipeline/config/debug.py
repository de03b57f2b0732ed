"""Debug runs: `debug=fast`, `overfit` or `profile` turns an experiment into a short one that checks it.

A debug run is an ordinary experiment with the same network, strategy and precision, and with settings that make it
shorter. So the recorded configuration is the one that ran, and its identity differs from the real run's identity.
"""

import copy
from typing import Any

from omegaconf import DictConfig, open_dict

from pipeline.config.experiment import Experiment, read
from pipeline.config.schemas import DebugSettings, FastSettings, OverfitSettings, ProfileSettings
from stages.errors import UserError
from stages.settings.results import EvaluateSettings
from stages.settings.train import StepSettings, TrainSettings

TRAIN = "train"

OVERFIT_EPOCH = 10
"""Number of steps per epoch of `debug=overfit`; the loss is checked after each epoch."""

_NOT_OVERFITTED = ("augment", "inspect")
"""Stages that `debug=overfit` leaves out, because the batch must not change and the data is not inspected."""


def debugged(experiment: Experiment) -> Experiment:
    """Return the experiment to run: `experiment` itself, or the debug run that checks it.

    Raises:
        UserError: If the debug run cannot work.
    """
    settings = experiment.debug
    if settings is None:
        return experiment
    _check(experiment, settings)
    document = copy.deepcopy(experiment.document)
    with open_dict(document):
        document.resume = "never"
        if isinstance(settings, FastSettings):
            _shorten(document, experiment, 1, settings.steps)
        elif isinstance(settings, OverfitSettings):
            _shorten(document, experiment, settings.steps // OVERFIT_EPOCH, OVERFIT_EPOCH, same_batch=True)
            document.train.update({"label_smoothing": 0.0, "class_weights": None})
            document.pipeline.update(dict.fromkeys({*_NOT_OVERFITTED} & {*document.pipeline}))
            _end_with(document, "overfit", "verdict", loss=settings.loss, steps_per_epoch=OVERFIT_EPOCH)
            document.train.callbacks.append({"_target_": "stages.callbacks.OneBatch", "enough": settings.loss})
        elif isinstance(settings, ProfileSettings):
            _shorten(document, experiment, 2, settings.steps)
            _end_with(document, "profiling", "profile")
            document.train.callbacks.append({"_target_": "stages.callbacks.Profiler", "steps": settings.traced})
    return read(document, experiment.choices, experiment.config_dirs, experiment.overrides)


def _check(experiment: Experiment, settings: DebugSettings) -> None:
    option = f"debug={settings.kind}"
    if experiment.resume not in ("auto", "never") or experiment.fork or experiment.from_stage:
        problem = f"{option} cannot be combined with resume, fork or from: a debug run starts from scratch"
        raise UserError(problem, "a debug run with all settings on the command line", f"{option} resume=never")
    if experiment.of(TRAIN, TrainSettings) is None and not isinstance(settings, FastSettings):
        raise UserError(f"{option} requires the project's own stage {TRAIN}", ("debug=fast", "train=loop", "train=fit"))


def _shorten(document: DictConfig, experiment: Experiment, epochs: int, steps: int, same_batch: bool = False) -> None:
    """Shorten the training, and the data set by a stage that follows the first one that returns a data set."""
    train, evaluate = experiment.of(TRAIN, TrainSettings), experiment.of("evaluate", EvaluateSettings)
    batch_size = getattr(experiment.settings.get(TRAIN), "batch_size", 64)
    if train:
        document.train.epochs = epochs
        document.train.fine_tune_epochs = min(train.fine_tune_epochs, 1)
        document.schedule.warmup_epochs = min(train.schedule.warmup_epochs, epochs / 2)
        if isinstance(train.schedule, StepSettings):
            document.schedule.decay_epochs = [min(epoch, epochs / 2) for epoch in train.schedule.decay_epochs]
        if evaluate:
            document.evaluate.batch_size = min(evaluate.batch_size or batch_size, batch_size)
    target = "stages.debug.shorten"
    document.shorten = {"_target_": target, "steps": steps, "batch_size": batch_size, "same_batch": same_batch}
    stages: dict[str, Any] = {}
    for name, makes in experiment.pipeline.items():
        stages[name] = makes
        if makes == "dataset" and "shorten" not in stages:
            stages["shorten"] = makes
    document.pipeline = stages


def _end_with(document: DictConfig, stage: str, makes: str, **settings: Any) -> None:
    """End with a stage of `stages.debug`, after a single phase of training that does not stop early."""
    document.train.update({"fine_tune_epochs": 0, "early_stopping_patience": 0})
    names = list(document.pipeline)
    document.pipeline.update(dict.fromkeys(names[names.index(TRAIN) + 1 :]))
    document[stage] = {"_target_": f"stages.debug.{stage}", **settings}
    document.pipeline[stage] = makes
