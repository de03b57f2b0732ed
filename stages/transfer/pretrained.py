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

    Returns:
        Parameters to record: `weights_loaded`, the number of arrays, and `weights_of`, `network` or `backbone`.

    Raises:
        UserError: where they cannot be loaded, or fit neither; the network is then unchanged.
    """
    if settings.weights == "none":
        return {}
    _refuse_several(network, f"model.weights={settings.weights}")
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
    backbone = backbone_of(network)
    layers = all_layers(backbone) if backbone is not None else []
    if any(isinstance(layer, keras.layers.Normalization) for layer in layers):
        raise UserError(
            f"model.weights={weights} is not supported for a network with a Normalization layer, which would use only "
            "part of them",
            "a network that scales by constants, such as EfficientNetV2, MobileNetV2 or ResNet50",
            "model=efficientnet_v2_b0 model.network.name=EfficientNetV2B0",
        )


def _from_applications(network: keras.Model, settings: ModelSettings) -> tuple[int, str]:
    """Have keras.applications build the backbone with its own weights, which Keras downloads once into ~/.keras."""
    backbone = backbone_of(network)
    encoders = [encoder_settings(name, value) for name, value in settings.encoders.items()]
    named = [arguments_of(one) for one in (settings.network, *encoders)]
    chosen = next((one for one in named if hasattr(keras.applications, str(one.get("name")))), {})
    make = getattr(keras.applications, str(chosen.get("name")), None)
    if backbone is None or make is None:
        raise _refused("imagenet", "fit only the networks of keras.applications")
    shape, arguments = tuple(backbone.input_shape[1:]), chosen.get("arguments") or {}
    try:
        with tf.device("/cpu:0"):
            donor = make(include_top=False, weights="imagenet", input_shape=shape, **arguments)
    except Exception as error:  # Keras raises no narrower one where there is no network
        raise UserError(
            f"model.weights=imagenet cannot be loaded ({one_line(error)})",
            "an internet connection, or a file with the weights of the backbone",
            "model.weights=<file.weights.h5>",
        ) from error
    backbone.set_weights(donor.get_weights())
    return len(backbone.weights), BACKBONE


def _from_path(network: keras.Model, path: Path) -> tuple[int, str]:
    """Load a file or a SavedModel of the network, of its backbone, or of a network with the same backbone."""
    exported, backbone = _saved_model(path), backbone_of(network)
    targets = {"network": network}
    if backbone is not None and exported is None:  # a file may be that of the backbone alone
        targets[BACKBONE] = backbone
    in_backbone = {id(weight) for weight in (backbone.weights if backbone is not None else ())}
    before, reason = network.get_weights(), ""
    for name, target in targets.items():
        missing, why = _filled(target, path) if exported is None else _assigned(target, exported)
        if not missing:
            return len(target.weights), name
        if in_backbone and not any(id(weight) in in_backbone for weight in missing):  # another head
            for weight, value in zip(network.weights, before, strict=True):
                if id(weight) not in in_backbone:
                    weight.assign(value)
            return len(in_backbone), BACKBONE
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


def backbone_of(network: keras.Model) -> keras.Model | None:
    """Return the network inside `network` that is named `backbone`, or None."""
    candidates = (layer for layer in all_layers(network, include_self=False) if layer.name == BACKBONE)
    return next((layer for layer in candidates if isinstance(layer, keras.Model)), None)


def _refuse_several(network: keras.Model, setting: str) -> None:
    names = [layer.name for layer in all_layers(network, include_self=False) if isinstance(layer, keras.Model)]
    if names.count(BACKBONE) > 1:
        problem = f"{setting} supports only one network named {BACKBONE}, but {names.count(BACKBONE)} encoders have one"
        raise UserError(problem, "a backbone in one of the encoders")


def is_frozen(network: keras.Model) -> bool:
    """Return whether `network` has a backbone without trained weights."""
    backbone = backbone_of(network)
    return backbone is not None and not backbone.trainable


def freeze(network: keras.Model) -> None:
    """Freeze the weights of the backbone, and have it compute in inference mode from now on.

    So BatchNorm uses its moving statistics unchanged, and dropout is off, in training too, and after `unfreeze`. Keras
    would pass the network's `training=True` on to every layer below, whatever the call in between says.
    Source: keras.io/guides/transfer_learning.

    Raises:
        UserError: where `network` has no backbone.
    """
    _refuse_several(network, "model.frozen=true")
    backbone = backbone_of(network)
    if backbone is None:
        raise UserError(
            f"model.frozen=true: {network.name} has no layer named {BACKBONE}",
            "a network that contains a keras.Model of that name, as model=application does",
            "model.frozen=false",
        )
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
    """Return whether `freeze` has put the backbone into inference mode."""
    return _INFERS in vars(backbone_of(network) or network)


def unfreeze(network: keras.Model, layers: int) -> None:
    """Unfreeze the last `layers` layers of the backbone but BatchNorm, whose statistics a small set would spoil.

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
