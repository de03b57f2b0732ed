"""Backbones of networks: frozen, put into inference mode, partly unfrozen."""

import inspect
from typing import Any

import keras

from stages.errors import UserError
from stages.networks.keras_internals import all_layers, set_untracked

_INFERS = "_computes_as_in_inference"

BACKBONE = "backbone"
"""Name of the layer, itself a network, below the head."""


def backbone_of(network: keras.Model) -> keras.Model | None:
    """Returns the network inside `network` that is named `backbone`, or None."""
    candidates = (layer for layer in all_layers(network, include_self=False) if layer.name == BACKBONE)
    return next((layer for layer in candidates if isinstance(layer, keras.Model)), None)


def is_frozen(network: keras.Model) -> bool:
    """Returns whether `network` has a backbone without trained weights."""
    backbone = backbone_of(network)
    return backbone is not None and not backbone.trainable


def freeze(network: keras.Model) -> None:
    """Freezes the weights of the backbone, and has it compute in inference mode from now on.

    So BatchNorm uses its moving statistics unchanged, and dropout is off, in training too, and after `unfreeze`. Keras
    would pass the network's `training=True` on to every layer below, whatever the call in between says.
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
            f"a head after the layer named {BACKBONE}",
            "model.frozen=false",
        )
    _infer_from_now_on(backbone)
    set_untracked(backbone, _INFERS, True)


def _infer_from_now_on(layer: keras.layers.Layer) -> None:
    """Has `layer` compute in inference mode; where its `call` takes no `training`, the layers in it."""
    call = layer.call
    if "training" not in inspect.signature(call).parameters:
        for inner in all_layers(layer, include_self=False, recursive=False):
            _infer_from_now_on(inner)
        return

    def infer(*inputs: Any, **options: Any) -> Any:
        return call(*inputs, **{**options, "training": False})

    layer.call = infer


def infers(network: keras.Model) -> bool:
    """Returns whether `freeze` has put the backbone into inference mode."""
    return _INFERS in vars(backbone_of(network) or network)


def unfreeze(network: keras.Model, layers: int) -> None:
    """Unfreezes the last `layers` layers of the backbone but BatchNorm, whose statistics a small set would spoil.

    Source: keras.io/guides/transfer_learning.
    """
    backbone = backbone_of(network)
    assert backbone is not None
    backbone.trainable = True
    for layer in backbone.layers[:-layers]:
        layer.trainable = False
    for layer in all_layers(backbone):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
