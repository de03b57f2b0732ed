"""Classes that settings name, checked by their source to be what the stage makes of them: callbacks and exporters."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.checks.refusal import train
from pipeline.config.experiment import Experiment
from pipeline.source_code.bases import extends
from pipeline.source_code.signatures import AbsentError, find
from stages.errors import UserError
from stages.settings.results import ExportSettings

CALLBACK = "keras.callbacks.Callback"
EXPORTER = "stages.exporters.exporter.Exporter"


def check_classes(experiment: Experiment) -> None:
    """Raises UserError for a callback or an exporter that certainly is none; others are known when they are made."""
    for place, target in _callbacks(experiment):
        if _extends(target, CALLBACK) is False:
            raise UserError(
                f"{place}: {target} is no Keras callback",
                f"a class that extends {CALLBACK}",
                "'train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}]'",
            )
        if _extends(target, "keras.callbacks.BackupAndRestore"):
            raise UserError(
                f"{place}: {target} would bring back weights, and train all epochs again",
                "callbacks that leave the weights alone; a run that was interrupted resumes by itself",
                "train.callbacks=[]",
            )
    for place, target in _exporters(experiment):
        if _extends(target, EXPORTER) is False:
            raise UserError(
                f"{place}._target_={target} is no exporter",
                f"a class that extends {EXPORTER}",
                f"{place}._target_=stages.exporters.saved_model.SavedModel",
            )


def _callbacks(experiment: Experiment) -> Iterator[tuple[str, str]]:
    settings = train(experiment)
    for index, entry in enumerate(settings.callbacks if settings else ()):
        yield f"train.callbacks[{index}]", _target(entry)


def _exporters(experiment: Experiment) -> Iterator[tuple[str, str]]:
    settings = experiment.settings.get("export")
    for name, entry in settings.formats.items() if isinstance(settings, ExportSettings) else ():
        yield f"export.formats.{name}", _target(entry)


def _target(entry: Any) -> str:
    return str(entry.get("_target_") if isinstance(entry, Mapping) else getattr(entry, "_target_", ""))


def _extends(target: str, base: str) -> bool | None:
    try:
        return extends(find(target), base)
    except AbsentError:  # refused elsewhere
        return None
