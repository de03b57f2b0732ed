"""The `train` stage by Keras: steps of the network's own `train_step`, in the project's epochs."""

from pathlib import Path

from stages.checkpoints.saved import restore_trained, save_trained
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy, Trained
from stages.reuse import allow_reuse
from stages.settings.train import FitSettings
from stages.training.phases import train_phases


def fit(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: FitSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Trained:
    """Train `model` in place by the steps of `Model.fit`; arguments, result and files are those of `stages.train`.

    Raises:
        UserError: where Keras would average over replicas whose batches differ in size, or divide weighted losses by
            their number.
    """
    if dataset.train.weights is not None:
        raise UserError("train=fit divides weighted losses by their number", "train=loop", "train=loop")
    _refuse_unequal_shares(settings, strategy.in_sync, len(dataset.train))
    return train_phases(model, dataset, strategy, settings, reporter, folder, None)


allow_reuse(fit, save_trained, restore_trained)


def _refuse_unequal_shares(settings: FitSettings, replicas: int, examples: int) -> None:
    size = settings.batch_size
    last = examples % size or size
    if size % replicas or last % replicas:
        raise UserError(
            f"train=fit averages the replicas' means, which is wrong where per-replica batches differ: {replicas} "
            f"replicas, train.batch_size={size}, a last batch of {last} (github.com/keras-team/keras/issues/19891)",
            f"batches that {replicas} divides, or train=loop, which is correct for all",
            "train=loop",
        )
