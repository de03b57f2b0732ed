"""Transfer learning: a backbone that keeps its weights, and the phases of a training that thaws its top."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from stages.checkpoints import Checkpoint
from stages.errors import UserError
from stages.settings.train import TrainSettings

_INFERS = "_computes_as_in_inference"

BACKBONE = "backbone"
"""The name of the layer, itself a network, that a head is put on."""


@dataclass(frozen=True)
class Phase:
    """A part of a training with an optimizer and trained layers of its own.

    settings: those of the training, with the epochs and the peak learning rate of this part.
    layers: layers of the backbone that are thawed, from its end; 0: it is left as it is.
    later: epochs of the phases that follow.
    """

    index: int
    settings: TrainSettings
    layers: int = 0
    later: int = 0

    def begin(self, network: keras.Model) -> tuple[int, int]:
        """Decides which weights of `network` are trained; returns how many numbers are, and how many stay."""
        if self.layers:
            thaw(network, self.layers)
        trained = sum(int(np.prod(weight.shape)) for weight in network.trainable_weights)
        return trained, network.count_params() - trained

    @contextmanager
    def tried(self, network: keras.Model) -> Iterator[None]:
        """Has the phase's weights trained, and afterwards the whole backbone frozen."""
        self.begin(network)
        try:
            yield
        finally:
            backbone = backbone_of(network)
            assert backbone is not None
            backbone.trainable = False


def phases(network: keras.Model, settings: TrainSettings) -> tuple[Phase, ...]:
    """Returns the phases of a training of `network`: one, and a second that fine-tunes where settings want it.

    Raises:
        UserError: where there is nothing to thaw.
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
    with Phase(1, settings, settings.fine_tune_layers).tried(network):
        some = bool(backbone.trainable_weights)
    if not some:
        raise UserError(
            f"train.fine_tune_layers={settings.fine_tune_layers}: the last of them hold no weights but BatchNorm's",
            f"up to {len(backbone.layers)}",
            f"train.fine_tune_layers={min(settings.fine_tune_layers + 10, len(backbone.layers))}",
        )
    optimizer = replace(settings.optimizer, learning_rate=settings.optimizer.learning_rate * settings.fine_tune_rate)
    second = replace(settings, epochs=settings.fine_tune_epochs, optimizer=optimizer)
    return first, Phase(1, second, settings.fine_tune_layers)


def backbone_of(network: keras.Model) -> keras.Model | None:
    """Returns the network inside `network` that is named `backbone`, or None."""
    inside = (layer for layer in network._flatten_layers(include_self=False) if layer.name == BACKBONE)
    return next((layer for layer in inside if isinstance(layer, keras.Model)), None)


def is_frozen(network: keras.Model) -> bool:
    """Returns whether `network` has a backbone of which no weight is trained."""
    backbone = backbone_of(network)
    return backbone is not None and not backbone.trainable


def freeze(network: keras.Model) -> None:
    """Keeps the weights of the backbone, and has it compute in inference mode from now on.

    So BatchNorm takes its moving statistics and leaves them, and dropout is off, in training too, and after `thaw` as
    well. Keras would hand `training=True` of the network on to every layer below, whatever the call in between says.
    Source: keras.io/guides/transfer_learning.

    Raises:
        UserError: where `network` has no backbone.
    """
    backbone = backbone_of(network)
    if backbone is None:
        raise UserError(
            f"model.frozen=true: {network.name} has no layer named {BACKBONE}",
            "a network with a keras.Model of that name in it, as those of keras.applications have here",
            "model.frozen=false",
        )
    backbone.trainable = False
    if not network.trainable_variables:
        raise UserError(
            f"model.frozen=true: {network.name} has no weights but those of its {BACKBONE}, so that none is trained",
            f"a head behind the layer named {BACKBONE}",
            "model.frozen=false",
        )
    _infer_from_now_on(backbone)
    backbone.__dict__[_INFERS] = True  # past Keras


def _infer_from_now_on(layer: keras.layers.Layer) -> None:
    """Has `layer` compute in inference mode; where its `call` takes no `training`, the layers in it."""
    call = layer.call
    if "training" not in inspect.signature(call).parameters:
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            _infer_from_now_on(inner)
        return

    def infer(*inputs: Any, **options: Any) -> Any:
        return call(*inputs, **{**options, "training": False})

    layer.call = infer


def infers(network: keras.Model) -> bool:
    """Returns whether `freeze` has put the backbone into inference mode."""
    return _INFERS in vars(backbone_of(network) or network)


def thaw(network: keras.Model, layers: int) -> None:
    """Has the last `layers` layers of the backbone trained, but for BatchNorm, whose statistics a small set spoils.

    Source: keras.io/guides/transfer_learning.
    """
    backbone = backbone_of(network)
    assert backbone is not None
    backbone.trainable = True
    for layer in backbone.layers[:-layers]:
        layer.trainable = False
    for layer in backbone._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False


def entered(checkpoint: Checkpoint, phases: Sequence[Phase]) -> tuple[Checkpoint, int]:
    """Returns a checkpoint as this training takes it, and the phase in which it goes on.

    Of another training (a fork) the phase is that which its epochs belong to here: one that is past `train.epochs`
    begins with what follows them.

    Raises:
        UserError: where it is in a phase that this training has not.
    """
    progress: Mapping[str, Any] = checkpoint.facts["progress"]
    index, epoch = int(progress.get("phase", 0)), int(progress["epoch"])
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
