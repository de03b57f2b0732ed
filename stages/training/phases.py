"""The phases of a training, and where it starts: at a checkpoint of its own, at another run's, or at the beginning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras

from stages.checkpoints.files import Checkpoint, from_bytes, newest, to_bytes
from stages.collectives import from_chief, has_workers, is_chief
from stages.data.batches import steps_per_epoch
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.training.resume import restore_weights
from stages.transfer.pretrained import is_frozen


@dataclass(frozen=True)
class Phase:
    """A part of a training with its own optimizer and trained layers."""

    index: int
    """The place among the phases, counted from 0. The second phase is fine-tuning."""
    settings: TrainSettings
    """The settings of the training, with the epochs and the peak learning rate of this phase."""
    later: int
    """The number of epochs of the phases that follow."""


def plan_phases(network: keras.Model, settings: TrainSettings) -> tuple[Phase, ...]:
    """Return the phases of a training of `network`: one, or two with fine-tuning.

    Raises:
        UserError: If there is nothing to unfreeze.
    """
    first = Phase(0, settings, settings.fine_tune_epochs)
    if not settings.fine_tune_epochs:
        return (first,)
    if not is_frozen(network):
        raise UserError(
            f"train.fine_tune_epochs={settings.fine_tune_epochs} requires a frozen backbone, but the network has none",
            "0, or a network with a frozen backbone",
            "model.frozen=true",
        )
    optimizer = replace(settings.optimizer, learning_rate=settings.optimizer.learning_rate * settings.fine_tune_rate)
    fine_tuning = replace(settings, epochs=settings.fine_tune_epochs, optimizer=optimizer)
    return first, Phase(1, fine_tuning, 0)


def starting_point(  # everything that decides where a training starts
    model: Model, dataset: Dataset, strategy: Strategy, phases: Sequence[Phase], folder: Path | None, reporter: Reporter
) -> tuple[Checkpoint | None, int]:
    """Decide where training starts: the checkpoint in `folder`, if there is one, and the index of the phase.

    The order is important:

    1. Resume: from this run's last intact checkpoint.
    2. Fork: from another run's checkpoint, `start.npz`, in terms of these settings.
    3. Weights that the stage `model` has loaded, or drawn from the seed.
    """
    checkpoint = newest(folder, reporter.warn) if folder is not None and is_chief(strategy) else None
    if has_workers(strategy):  # only the chief reads
        content = from_chief(strategy, to_bytes(checkpoint) if checkpoint is not None else b"")
        checkpoint = from_bytes(content) if content else None
    if checkpoint is None:
        return None, 0
    restore_weights(model.network, checkpoint)  # features are computed with its backbone
    checkpoint, start = starting_phase(checkpoint, phases)
    if checkpoint.is_fork and checkpoint.facts["forked"]["fresh"]:  # the schedule continues, and the optimizer does not
        per_epoch = steps_per_epoch(dataset.train, phases[0].settings.batch_size)
        progress = checkpoint.facts["progress"]
        checkpoint = checkpoint.with_progress(shift=(progress["epoch"] - progress["began"]) * per_epoch)
    return checkpoint, start


def starting_phase(checkpoint: Checkpoint, phases: Sequence[Phase]) -> tuple[Checkpoint, int]:
    """Return a checkpoint in terms of this training's phases, and the index of the phase in which it resumes.

    A fork starts in the phase that its epochs belong to in this training: past `train.epochs`, in the second. A fork
    whose first phase stopped early stays in the second, unless this training asks for more epochs in the first.
    """
    progress = checkpoint.facts["progress"]
    index, epoch = progress["phase"], progress["epoch"]
    if not checkpoint.is_fork:
        if index >= len(phases):
            problem = "train.fine_tune_epochs=0, but the checkpoint is from the fine-tuning phase"
            raise UserError(problem, "the settings of the run that wrote the checkpoint", "resume=never")
        return checkpoint, index
    planned = max(epoch, progress.get("planned", 0))  # checkpoints of earlier code have none
    if index >= len(phases) or (index and planned < phases[0].settings.epochs):
        return checkpoint.with_progress(phase=0, began=0), 0
    if index == 0 and len(phases) > 1 and epoch >= phases[0].settings.epochs:
        return checkpoint.with_progress(phase=1, began=epoch), 1
    return checkpoint, index
