"""Pretrained networks: weights from a file, a SavedModel or keras.applications, and the backbone that is frozen."""

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import all_layers, one_line, set_untracked
from stages.settings.model import ModelSettings, encoder_settings
from stages.targets import arguments_of


def load_weights(network: keras.Model, settings: ModelSettings) -> dict[str, Any]:
    """Load `settings.weights` into `network` or its backbone; other weights keep their initial values.

    If several encoders have a backbone, each gets the same weights.

    Returns:
        Parameters to record: `weights_loaded`, the number of arrays, and `weights_of`, `network` or `backbone`.

    Raises:
        UserError: where they cannot be loaded, or fit neither; the network is then unchanged.
    """
    if settings.weights == "none":
        return {}
    _refuse_adapted(network, settings.weights)
    if settings.weights == "imagenet":
        count, part = _from_applications(network, settings)
    else:
        try:
            count, part = _from_path(network, Path(settings.weights).expanduser())
        except (OSError, tf.errors.OpError) as error:
            raise _refused(settings.weights, f"cannot be read ({one_line(error)})") from error
    return {"weights_loaded": count, "weights_of": part}


def _refuse_adapted(network: keras.Model, weights: str) -> None:
    """Refuse weights for the first EfficientNets, B0 to B7, which would silently compute other numbers.

    Keras adds a layer to them for ImageNet's weights alone (keras/src/applications/efficientnet.py), and their
    Normalization takes the statistics of its arguments only when it is adapted.
    """
    layers = [layer for backbone in backbones_of(network) for layer in all_layers(backbone)]
    if any(isinstance(layer, keras.layers.Normalization) for layer in layers):
        raise UserError(
            f"model.weights={weights} is not supported for a network with a Normalization layer, which would use only "
            "part of them",
            "a network that scales by constants, such as EfficientNetV2, MobileNetV2 or ResNet50",
            "model=efficientnet_v2_b0 model.network.name=EfficientNetV2B0",
        )


def _from_applications(network: keras.Model, settings: ModelSettings) -> tuple[int, str]:
    """Have keras.applications build the backbones with its own weights, which Keras downloads once into ~/.keras."""
    backbones = backbones_of(network)
    encoders = [encoder_settings(name, value) for name, value in settings.encoders.items()]
    named = [arguments_of(one) for one in (settings.network, *encoders)]
    chosen = [one for one in named if hasattr(keras.applications, str(one.get("name")))]
    if not backbones or not chosen:
        raise _refused("imagenet", "fit only the networks of keras.applications")
    made = [(one["name"], one.get("arguments") or {}) for one in chosen]
    if any(one != made[0] for one in made):
        raise _refused("imagenet", f"are those of one network, but the encoders are {made[0][0]} and others")
    [(name, arguments), *_] = made
    for backbone in backbones:
        shape = tuple(backbone.input_shape[1:])
        try:
            with tf.device("/cpu:0"):
                make = getattr(keras.applications, name)
                donor = make(include_top=False, weights="imagenet", input_shape=shape, **arguments)
        except Exception as error:  # Keras raises no narrower one where there is no network
            raise UserError(
                f"model.weights=imagenet cannot be loaded ({one_line(error)})",
                "an internet connection, or a file with the weights of the backbone",
                "model.weights=<file.weights.h5>",
            ) from error
        backbone.set_weights(donor.get_weights())
    return sum(len(backbone.weights) for backbone in backbones), BACKBONE


def _from_path(network: keras.Model, path: Path) -> tuple[int, str]:
    """Load a file or a SavedModel of the network, of its backbone, or of a network with the same backbone."""
    exported, backbones = _saved_model(path), backbones_of(network)
    targets = {"network": [network]}
    if backbones and exported is None:  # a file may be that of the backbone alone
        targets[BACKBONE] = backbones
    in_backbones = {id(weight) for backbone in backbones for weight in backbone.weights}
    before, reason = network.get_weights(), ""
    for name, parts in targets.items():
        filled = [_filled(part, path) if exported is None else _assigned(part, exported) for part in parts]
        missing, why = next((one for one in filled if one[0]), filled[0])
        if not missing:
            return sum(len(part.weights) for part in parts), name
        if in_backbones and not any(id(weight) in in_backbones for weight in missing):  # another head
            for weight, value in zip(network.weights, before, strict=True):
                if id(weight) not in in_backbones:
                    weight.assign(value)
            return len(in_backbones), BACKBONE
        network.set_weights(before)
        reason = f"do not fit the {name}: {missing[0].path} {list(missing[0].shape)} is missing {why}"
    raise _refused(str(path), reason)


def _filled(target: keras.Model, path: Path) -> tuple[list[keras.Variable], str]:
    """Load the weights that fit; return those that got no value, and Keras' reason.

    Keras names the layers that fail in prose alone. So all weights are set to NaN first: those that still are failed.
    """
    for weight in target.weights:
        if "float" in weight.dtype:
            weight.assign(np.full(weight.shape, np.nan))
    reason = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target.load_weights(path, **({"skip_mismatch": True} if path.name.endswith(".weights.h5") else {}))
        except (ValueError, KeyError) as error:
            reason = f"({one_line(error)})"
    values = zip(target.weights, target.get_weights(), strict=True)
    return [weight for weight, value in values if np.isnan(np.sum(value, dtype=np.float64))], reason


def _saved_model(path: Path) -> Sequence[np.ndarray] | None:
    """Return all weights of an exported network, in its order; None where `path` is not a SavedModel.

    Source: `Serving.weights` of the export stage.
    """
    exports = [folder for folder in (path, path / "tf2model") if (folder / "saved_model.pb").exists()]
    if not exports:
        return None
    reader = tf.train.load_checkpoint(str(exports[0] / "variables" / "variables"))
    names = reader.get_variable_to_shape_map()
    keys = iter(f"weights/{index}/.ATTRIBUTES/VARIABLE_VALUE" for index in range(len(names)))
    return [reader.get_tensor(key) for key in keys if key in names]


def _assigned(network: keras.Model, arrays: Sequence[np.ndarray]) -> tuple[list[keras.Variable], str]:
    """Assign the arrays that fit, in their order; return the weights that got none, and a reason."""
    missing = []
    for place, weight in enumerate(network.weights):
        if place < len(arrays) and arrays[place].shape == tuple(weight.shape):
            weight.assign(arrays[place])
        else:
            missing.append(weight)
    has_another_head = len(arrays) > len(network.weights)
    return missing or (network.weights[-1:] if has_another_head else []), f"among {len(arrays)} arrays"


def _refused(source: str, why: str) -> UserError:
    return UserError(
        f"model.weights: the weights of {source} {why}",
        "weights of this network or of its backbone, or the network that the weights belong to",
        "model.weights=none",
    )


_INFERS = "_computes_as_in_inference"

BACKBONE = "backbone"
"""Name of the layer, itself a network, below the head."""


def backbones_of(network: keras.Model) -> list[keras.Model]:
    """Return the networks inside `network` that are named `backbone`; several encoders may have one each."""
    candidates = (layer for layer in all_layers(network, include_self=False) if layer.name == BACKBONE)
    return [layer for layer in candidates if isinstance(layer, keras.Model)]


def backbone_of(network: keras.Model) -> keras.Model | None:
    """Return the first network inside `network` that is named `backbone`, or None."""
    return next(iter(backbones_of(network)), None)


def is_frozen(network: keras.Model) -> bool:
    """Return whether `network` has a backbone, and none with trained weights."""
    backbones = backbones_of(network)
    return bool(backbones) and not any(backbone.trainable for backbone in backbones)


def freeze(network: keras.Model) -> None:
    """Freeze the weights of the backbones, and have them compute in inference mode from now on.

    So BatchNorm uses its moving statistics unchanged, and dropout is off, in training too, and after `unfreeze`. Keras
    would pass the network's `training=True` on to every layer below, whatever the call in between says.
    Source: keras.io/guides/transfer_learning.

    Raises:
        UserError: where `network` has no backbone.
    """
    backbones = backbones_of(network)
    if not backbones:
        raise UserError(
            f"model.frozen=true: {network.name} has no layer named {BACKBONE}",
            "a network that contains a keras.Model of that name, as model=application does",
            "model.frozen=false",
        )
    for backbone in backbones:
        backbone.trainable = False
        _infer_from_now_on(backbone)
        set_untracked(backbone, _INFERS, True)


def _infer_from_now_on(layer: keras.layers.Layer) -> None:
    """Have `layer` compute in inference mode; if its `call` has no `training`, the layers in it."""
    call = layer.call
    if "training" not in inspect.signature(call).parameters:
        for inner in all_layers(layer, include_self=False, recursive=False):
            _infer_from_now_on(inner)
        return

    def infer(*inputs: Any, **options: Any) -> Any:
        return call(*inputs, **{**options, "training": False})

    layer.call = infer


def infers(network: keras.Model) -> bool:
    """Return whether `freeze` has put the backbones into inference mode."""
    return _INFERS in vars(backbone_of(network) or network)


def unfreeze(network: keras.Model, layers: int) -> None:
    """Unfreeze the last `layers` layers of each backbone but BatchNorm, whose statistics a small set would spoil.

    Source: keras.io/guides/transfer_learning.
    """
    for backbone in backbones_of(network):
        backbone.trainable = True
        for layer in backbone.layers[:-layers]:
            layer.trainable = False
        for layer in all_layers(backbone):
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
