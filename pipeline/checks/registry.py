"""All checks of an experiment, before TensorFlow is imported and anything is recorded."""

from pipeline.checks.combinations import COMBINATIONS
from pipeline.checks.own_code import check_own_code
from pipeline.checks.rules import expected_replicas
from pipeline.checks.surroundings import exporters_are_installed, outputs_can_be_written, tpu_exists
from pipeline.config.experiment import Experiment
from pipeline.tracking.store import store_is_usable
from stages.errors import UserError
from stages.settings.data import DataSettings
from stages.settings.train import TrainSettings


def check_rules(experiment: Experiment, surroundings: bool = True) -> None:
    """Raise UserError for the first rule that `experiment` breaks.

    Args:
        surroundings: whether to check the folder and the server of its results, too.
    """
    if not experiment.pipeline:
        raise UserError("`pipeline` names no stage", "at least one", "pipeline.<stage>=<what it makes>")
    train, data = experiment.of("train", TrainSettings), experiment.of("load", DataSettings)
    replicas = expected_replicas(experiment)
    if train and replicas:
        train.check_share(replicas, data.train_examples() if data else None)
    for rule in COMBINATIONS:
        if error := rule.error(experiment):
            raise error
    for check in (tpu_exists, exporters_are_installed, check_own_code):
        check(experiment)
    if surroundings:
        check_surroundings(experiment)


def check_surroundings(experiment: Experiment) -> None:
    """Raise UserError where results cannot be kept, in a folder or a server that all jobs of a sweep share."""
    outputs_can_be_written(experiment)
    store_is_usable(experiment)
