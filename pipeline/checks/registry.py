"""Combinations that cannot work, refused before TensorFlow is imported and anything is recorded."""

from collections.abc import Callable

from pipeline.checks.augmentation import augmentation_is_possible
from pipeline.checks.batch import batch_is_shared
from pipeline.checks.combinations import COMBINATIONS
from pipeline.checks.environment import outputs_can_be_written
from pipeline.checks.own_settings import check_own_settings
from pipeline.config.experiment import Experiment
from pipeline.tracking.health import server_answers
from stages.data import class_folders, tfds_folder
from stages.errors import UserError
from stages.settings.data import ImageFolderSettings, TfdsSettings


def check_rules(experiment: Experiment, surroundings: bool = True) -> None:
    """Raises UserError for the first rule that `experiment` breaks.

    Args:
        surroundings: whether the folder and the server are tried, too, in which its results are kept.
    """
    if not experiment.pipeline:
        raise UserError("`pipeline` names no stage", "at least one", "pipeline.<stage>=<what it makes>")
    for rule in (*RULES, *(SURROUNDINGS if surroundings else ())):
        rule(experiment)


def _data_is_usable(experiment: Experiment) -> None:
    """Reads what the folder of a data set says of itself, without TensorFlow."""
    settings = experiment.settings.get("load")
    if isinstance(settings, TfdsSettings) and not settings.download:
        tfds_folder.check(settings)
    if isinstance(settings, ImageFolderSettings):
        class_folders.split_folders(settings.folder)


RULES: tuple[Callable[[Experiment], None], ...] = (
    batch_is_shared,
    augmentation_is_possible,
    *COMBINATIONS,
    _data_is_usable,
    check_own_settings,
)

SURROUNDINGS: tuple[Callable[[Experiment], None], ...] = (outputs_can_be_written, server_answers)
"""What does not depend on a job of a sweep: its jobs share `outputs` and `tracking`."""
