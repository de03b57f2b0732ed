"""Forks: new runs that start from the weights of another run."""

from pipeline.config.experiment import Experiment
from pipeline.decide.differences import refuse_differing, settings_of_both
from pipeline.provenance.identity import is_among
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary
from stages.errors import UserError
from stages.settings.train import TrainSettings

NETWORK = "model.network._target_"

SAME_IN_FORK = (
    "data._target_", "data.name", "data.split_seed", "data.val_fraction", "data.test_fraction", "train._target_",
    NETWORK,
)  # fmt: skip
"""Settings that must be the same as in the forked run, because they determine its data and variables.

The data and the variables themselves are compared with the checkpoint once they are loaded."""


def forked_run(experiment: Experiment, starts: bool = True) -> Summary | None:
    """Return the run of `fork=<run>`; None without one.

    Args:
        experiment: The fork.
        starts: Whether `experiment` starts from that run, which then must have a checkpoint. A fork that has begun
            continues from its own.

    Raises:
        UserError: If the run cannot be forked with these settings.
    """
    text = experiment.fork
    if text is None:
        return None
    run = Runs(experiment.outputs).find(text, "fork")
    folder = RunFolder(run.folder)
    if starts and not folder.can_start:
        raise UserError(f"fork={text} has no checkpoint in {folder}", "a run with a checkpoint")
    check_fork(experiment, run)
    if starts:
        refuse_without_epochs(experiment, run)
    return run


def refuse_without_epochs(experiment: Experiment, run: Summary) -> None:
    """Refuse a fork whose `train.epochs` is not larger than the number of epochs that `run` has trained."""
    train, begin = experiment.of("train", TrainSettings), epochs_before(experiment, run)
    if train and begin >= train.all_epochs:
        raise UserError(
            f"train.epochs={train.epochs} leaves nothing to train: fork={experiment.fork} starts after epoch {begin}",
            f"more than {begin}",
            f"train.epochs={2 * begin}",
        )


def epochs_before(experiment: Experiment, run: Summary | None) -> int:
    """Return the epoch of `run` after which a fork of it starts; 0 without a run."""
    name = "train/weights_epoch" if experiment.fork_weights == "best" else "train/last_epoch"
    return int(run.metrics.get(name, 0)) if run is not None else 0


def check_fork(experiment: Experiment, run: Summary) -> None:
    """Refuse settings that give `experiment` different data or variables than the run that it forks."""
    both = settings_of_both(run, experiment, ())
    is_ours = all(str(settings.get(NETWORK)).startswith("stages.networks.") for settings in both)
    compared = [name for name in SAME_IN_FORK if is_ours or name != NETWORK]  # a custom network may have been renamed
    before, now = ({name: value for name, value in settings.items() if is_among(name, compared)} for settings in both)
    expected = "the same data, network and training stage as in that run, or a new run"
    refuse_differing(f"fork={experiment.fork}", before, now, expected, "fork=null")
