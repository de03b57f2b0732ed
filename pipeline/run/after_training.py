"""Prepares the stages after training while training computes: their imports, and the process that reloads exports."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from stages.exporters import fresh_process
from stages.settings.results import ExportSettings

if TYPE_CHECKING:
    from pipeline.run.runner import BoundStage

PREPARE_SECONDS = 10.0
"""Seconds before the end of training when it begins, so that no memory is held for the hours before."""

_LATER = ("matplotlib.backends.backend_agg", "sklearn.metrics")
"""Modules that `evaluate` imports, which takes a second."""


def prepare(later: Sequence["BoundStage"]) -> None:
    """Start the imports of the stages `later`, and the process that reloads what they export."""

    def load() -> None:
        with suppress(ImportError):  # the stage raises it
            for name in _LATER:
                import_module(name)

    if any(stage.planned.name == "evaluate" and stage.planned.is_needed for stage in later):
        threading.Thread(target=load, name="imports").start()
    if reloads(later):
        fresh_process.prestart()


def reloads(later: Sequence["BoundStage"]) -> bool:
    """Return whether one of the stages `later` exports, and reloads its files in a fresh process."""
    exports = [stage.settings for stage in later if stage.planned.is_needed and stage.planned.saved is None]
    return any(isinstance(settings, ExportSettings) and settings.reload == "process" for settings in exports)
