"""Processes that reload exported models, started early because their import of TensorFlow takes seconds."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from pipeline.config.experiment import Experiment
from pipeline.planning.plan import PlannedStage
from stages.exporters import fresh_process
from stages.settings.results import ExportSettings, SavedModelSettings
from stages.targets import target_of

_RUNTIME = "tensorflow"
"""Of SavedModels, the default format. Other formats' processes begin with the export."""


def reloading(plan: Sequence[PlannedStage], experiment: Experiment) -> AbstractContextManager[None]:
    """Starts the process for the SavedModel of a run, which imports TensorFlow while the run does, on another core."""
    exports = any(stage.name == "export" and stage.is_needed and stage.saved is None for stage in plan)
    return fresh_process.ahead(_RUNTIME) if exports and _reloads_saved_model(experiment) else nullcontext()


def reloading_for_jobs(experiments: Iterable[Experiment]) -> AbstractContextManager[None]:
    """Starts one process that has imported TensorFlow for all jobs of a sweep; each job's own is forked from it."""
    return fresh_process.serving(_RUNTIME) if any(map(_reloads_saved_model, experiments)) else nullcontext()


def _reloads_saved_model(experiment: Experiment) -> bool:
    settings = experiment.of("export", ExportSettings)
    if settings is None or settings.reload != "process":
        return False
    targets = [target_of(part) for part in settings.formats.values()]
    return not targets or SavedModelSettings._target_ in targets
