"""The phases of a training: one, or two where the second fine-tunes the top of a frozen backbone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from stages.checkpoints.files import Checkpoint
from stages.errors import UserError
from stages.settings.train import TrainSettings
from stages.transfer.backbone import backbone_of, is_frozen, unfreeze


@dataclass(frozen=True)
class Phase:
    """A part of a training with its own optimizer and trained layers.

    settings: those of the training, with the epochs and the peak learning rate of this part.
    layers: layers of the backbone that are unfrozen, from its end; 0: none.
    later: epochs of the phases that follow.
    """

    index: int
    settings: TrainSettings
    layers: int = 0
    later: int = 0

    def set_trainable(self, network: keras.Model) -> tuple[int, int]:
        """Makes the phase's weights of `network` trainable; returns the numbers of trained and of frozen weights."""
        if self.layers:
            unfreeze(network, self.layers)
        trained = sum(int(np.prod(weight.shape)) for weight in network.trainable_weights)
        return trained, network.count_params() - trained

    @contextmanager
    def with_trainable(self, network: keras.Model) -> Iterator[None]:
        """Makes the phase's weights trainable for the block, and freezes the whole backbone at its end."""
        self.set_trainable(network)
        try:
            yield
        finally:
            backbone = backbone_of(network)
            assert backbone is not None
            backbone.trainable = False


def phases(network: keras.Model, settings: TrainSettings) -> tuple[Phase, ...]:
    """Returns the phases of a training of `network`: one, or two with fine-tuning.

    Raises:
        UserError: where there is nothing to unfreeze.
    """
    first = Phase(0, settings, later=settings.fine_tune_epochs)
    if not settings.fine_tune_epochs:
        return (first,)
    if not is_frozen(network):
        raise UserError(
            f"train.fine_tune_epochs={settings.fine_tune_epochs} trains a frozen backbone's top, and none is frozen",
            "0, or a network with a frozen backbone",
            "model.frozen=true",
        )
    backbone = backbone_of(network)
    assert backbone is not None
    with Phase(1, settings, settings.fine_tune_layers).with_trainable(network):
        has_weights = bool(backbone.trainable_weights)
    if not has_weights:
        raise UserError(
            f"train.fine_tune_layers={settings.fine_tune_layers}: the last of them hold no weights but BatchNorm's",
            f"up to {len(backbone.layers)}",
            f"train.fine_tune_layers={min(settings.fine_tune_layers + 10, len(backbone.layers))}",
        )
    optimizer = replace(settings.optimizer, learning_rate=settings.optimizer.learning_rate * settings.fine_tune_rate)
    fine_tuning = replace(settings, epochs=settings.fine_tune_epochs, optimizer=optimizer)
    return first, Phase(1, fine_tuning, settings.fine_tune_layers)


def starting_phase(checkpoint: Checkpoint, phases: Sequence[Phase]) -> tuple[Checkpoint, int]:
    """Returns a checkpoint in terms of this training's phases, and the index of the phase in which it resumes.

    A fork starts in the phase that its epochs belong to in this training: past `train.epochs`, in the second.

    Raises:
        UserError: where the checkpoint is in a phase that this training does not have.
    """
    progress: Mapping[str, Any] = checkpoint.facts["progress"]
    index = int(progress.get("phase", 0))
    epoch = int(progress["epoch"])
    if not checkpoint.facts.get("fork"):
        if index >= len(phases):
            raise UserError(
                "the checkpoint belongs to another training: it fine-tunes, and train.fine_tune_epochs=0",
                "the settings that it was made with, or fork=<run id>",
                "resume=never",
            )
        return checkpoint, index
    if index >= len(phases) or (index and epoch < phases[0].settings.epochs):
        progress = {**progress, "phase": 0, "began": 0}
    elif index == 0 and len(phases) > 1 and epoch >= phases[0].settings.epochs:
        progress = {**progress, "phase": 1, "began": epoch}
    return replace(checkpoint, facts={**checkpoint.facts, "progress": progress}), int(progress.get("phase", 0))
