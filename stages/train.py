"""The `train` stage: the training loop, with validation, callbacks and the best weights."""

from pathlib import Path

import keras

from stages.checkpoints.saved import restore_trained, save_trained
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy, Trained
from stages.reuse import allow_reuse
from stages.settings.train import TrainSettings
from stages.training.phases import train_phases


def train(  # noqa: PLR0913  # a stage's parameters name its inputs
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Trained:
    """Trains `model` in place and returns it with the best epoch's weights (or the last's, by `restore_best`).

    Under a parameter-server strategy the result is a copy on one device. With fine-tuning, a second phase begins with
    the result of the first; epochs, history and the best weights are those of both.

    Args:
        reporter: receives the metrics of each epoch, and the progress within it.
        folder: the run's; takes checkpoints, `checkpoints/best.weights.h5`, `checkpoints/ema.weights.h5` where an
            EMA is kept and not used, and `plots/history.png`. Training resumes from the last intact checkpoint in it.
            None: no files.
        cache: the folder that runs share; takes the features of a frozen backbone.

    Raises:
        UserError: where the replicas cannot share the batch, the loss is no longer finite, the checkpoint belongs to
            another training, or one cannot be written.
    """
    network = type(model.network.core)
    if network.train_step is not keras.Model.train_step:
        raise UserError(
            f"{network.__name__} has a train_step of its own, which the training loop would not call",
            "train=fit, which does; or compute_loss, add_loss and metrics instead of it",
            "train=fit",
        )
    return train_phases(model, dataset, strategy, settings, reporter, folder, cache)


allow_reuse(train, save_trained, restore_trained)
