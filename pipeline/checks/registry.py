"""All checks of an experiment, before TensorFlow is imported and anything is recorded."""

from collections.abc import Callable

from pipeline.checks.augmentation import AUGMENTATION
from pipeline.checks.environment import data_is_usable, exporters_are_installed, outputs_can_be_written, tpu_exists
from pipeline.checks.own_settings import check_classes, check_own_settings
from pipeline.checks.precision import PRECISION
from pipeline.checks.refusal import Refusal, batch_is_shared
from pipeline.checks.registration import REGISTRATION
from pipeline.checks.strategy import STRATEGY
from pipeline.checks.training import TRAINING
from pipeline.checks.transfer import TRANSFER
from pipeline.config.experiment import Experiment
from pipeline.tracking.store import store_is_usable
from stages.errors import UserError

REFUSALS: tuple[Refusal, ...] = (*AUGMENTATION, *STRATEGY, *TRAINING, *TRANSFER, *PRECISION, *REGISTRATION)
"""All refused combinations, in the order in which they are checked."""

SURROUNDINGS: tuple[Callable[[Experiment], None], ...] = (outputs_can_be_written, store_is_usable)
"""Checks that are the same for all jobs of a sweep, which share `outputs` and `tracking`."""


def check_rules(experiment: Experiment, surroundings: bool = True) -> None:
    """Raises UserError for the first rule that `experiment` breaks.

    Args:
        surroundings: whether to check the folder and the server of its results, too.
    """
    if not experiment.pipeline:
        raise UserError("`pipeline` names no stage", "at least one", "pipeline.<stage>=<what it makes>")
    batch_is_shared(experiment)
    for refusal in REFUSALS:
        if refusal.when(experiment):
            raise refusal.error(experiment)
    for check in (tpu_exists, data_is_usable, exporters_are_installed, check_classes, check_own_settings):
        check(experiment)
    if surroundings:
        check_surroundings(experiment)


def check_surroundings(experiment: Experiment) -> None:
    """Raises UserError where the folder or the server in which results are kept cannot be used."""
    for check in SURROUNDINGS:
        check(experiment)
