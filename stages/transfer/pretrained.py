"""First weights of a network that were trained before: from a file, a SavedModel, or keras.applications."""

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import all_layers, load_matching_weights, one_line
from stages.settings.model import ModelSettings
from stages.transfer.backbone import BACKBONE, backbone_of

TIMEOUT_SECONDS = 10.0
"""How long a server may be silent before there is no network."""


def load_weights(network: keras.Model, settings: ModelSettings) -> dict[str, Any]:
    """Gives `network`, or its backbone, the weights that `settings.weights` names; the rest keeps its first values.

    Returns:
        What to record: `weights_loaded`, the number of arrays, and `weights_of`, `network` or `backbone`.

    Raises:
        UserError: where they cannot be had, or fit neither; the network is as it was then.
    """
    if settings.weights == "none":
        return {}
    _refuse_adapted(network, settings.weights)
    if settings.weights == "imagenet":
        count, part = _from_applications(network, settings.network)
    else:
        path = Path(settings.weights).expanduser()
        exported = _saved_model(path)
        try:
            count, part = _from_list(network, exported) if exported is not None else _from_file(network, path)
        except (OSError, tf.errors.OpError) as error:
            raise _refused(settings.weights, f"cannot be read ({one_line(error)})") from error
    return {"weights_loaded": count, "weights_of": part}


def _refuse_adapted(network: keras.Model, weights: str) -> None:
    """Refuses weights for the first EfficientNets, B0 to B7: they would compute other numbers without a word.

    Keras puts a layer into them for ImageNet's weights alone (keras/src/applications/efficientnet.py), and their
    Normalization takes the statistics of its arguments only when it is adapted.
    """
    backbone = backbone_of(network)
    inside = all_layers(backbone) if backbone is not None else []
    if any(isinstance(layer, keras.layers.Normalization) for layer in inside):
        raise UserError(
            f"model.weights={weights} for a network with a Normalization layer, which would not use all of them",
            "networks that scale by constants, such as EfficientNetV2, MobileNetV2, ResNet50",
            "model=efficientnet_v2_b0",
        )


def _from_applications(network: keras.Model, settings: Any) -> tuple[int, str]:
    """Has keras.applications build the backbone with its own weights, which it keeps in ~/.keras once it has them."""
    backbone = backbone_of(network)
    chosen: Mapping[str, Any] = settings if isinstance(settings, Mapping) else vars(settings)
    make = getattr(keras.applications, str(chosen.get("name")), None)
    if backbone is None or make is None:
        raise _refused("imagenet", "are those of a network of keras.applications, and this is none")
    waited = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        with tf.device("/cpu:0"):
            donor = make(
                include_top=False,
                weights="imagenet",
                input_shape=tuple(backbone.input_shape[1:]),
                **(chosen.get("arguments") or {}),
            )
    except Exception as error:  # Keras raises no narrower one where there is no network
        raise UserError(
            f"model.weights=imagenet cannot be had ({one_line(error)})",
            "a network connection, or a file with the weights of the backbone",
            "model.weights=<file.weights.h5>",
        ) from error
    finally:
        socket.setdefaulttimeout(waited)
    backbone.set_weights(donor.get_weights())
    return len(backbone.weights), BACKBONE


def _from_file(network: keras.Model, path: Path) -> tuple[int, str]:
    """Loads a file of Keras into whatever it fits: the network, its backbone, or the backbone of another network."""
    backbone = backbone_of(network)
    inside = {id(weight) for weight in (backbone.weights if backbone is not None else ())}
    failures = []
    for name, target in {"network": network, BACKBONE: backbone}.items():
        if target is None:
            continue
        with _restored(target) as initial:
            missing, reason = _filled(target, path)
            if not missing:
                initial.clear()
                return len(target.weights), name
            if inside and not any(id(weight) in inside for weight in missing):  # another head
                for index, weight in enumerate(target.weights):
                    if id(weight) in inside:
                        del initial[index]
                return len(inside), BACKBONE
        failures.append((len(missing), name, missing[0], reason))
    _, name, first, reason = min(failures, key=lambda failure: failure[0])
    problem = f"do not fit the {name}: they have no {first.path} {list(first.shape)}"
    raise _refused(str(path), f"{problem} ({reason})" if reason else problem)


@contextlib.contextmanager
def _restored(target: keras.Model) -> Iterator[dict[int, np.ndarray]]:
    """Yields the weights by their index, and restores at the end those that are still among them."""
    initial = dict(enumerate(target.get_weights()))
    try:
        yield initial
    finally:
        for index, value in initial.items():
            target.weights[index].assign(value)


def _filled(target: keras.Model, path: Path) -> tuple[list[keras.Variable], str]:
    """Loads what fits, and returns the weights that got nothing, and Keras' reason.

    Keras names the layers that fail only in prose. So all weights become NaN first: those that still are have failed.
    """
    for weight in target.weights:
        if "float" in weight.dtype:
            weight.assign(np.full(weight.shape, np.nan))
    reason = load_matching_weights(target, path)
    values = zip(target.weights, target.get_weights(), strict=True)
    return [weight for weight, value in values if np.isnan(np.sum(value, dtype=np.float64))], reason


def _saved_model(path: Path) -> Sequence[np.ndarray] | None:
    """Returns all weights of an exported network, in its order; None where `path` is no SavedModel.

    Source: `Serving.weights` of the export stage.
    """
    exports = [folder for folder in (path, path / "tf2model") if (folder / "saved_model.pb").exists()]
    if not exports:
        return None
    reader = tf.train.load_checkpoint(str(exports[0] / "variables" / "variables"))
    names = reader.get_variable_to_shape_map()
    keys = iter(f"weights/{index}/.ATTRIBUTES/VARIABLE_VALUE" for index in range(len(names)))
    return [reader.get_tensor(key) for key in keys if key in names]


def _from_list(network: keras.Model, arrays: Sequence[np.ndarray]) -> tuple[int, str]:
    """Takes all of `arrays` where they are the network's, else those of the backbone, which come first."""
    own, backbone = network.weights, backbone_of(network)
    if [tuple(weight.shape) for weight in own] == [array.shape for array in arrays]:
        network.set_weights(arrays)
        return len(own), "network"
    inside = {id(weight) for weight in (backbone.weights if backbone is not None else own)}
    pairs = [(weight, index) for index, weight in enumerate(own) if id(weight) in inside]
    for weight, index in pairs:
        there = arrays[index].shape if index < len(arrays) else "absent"
        if there != tuple(weight.shape):
            shapes = f"{weight.path} is {list(weight.shape)} here and {list(there) if there != 'absent' else there}"
            raise _refused("the SavedModel", f"are of another network: {shapes} there")
    for weight, index in pairs:
        weight.assign(arrays[index])
    return len(pairs), BACKBONE


def _refused(source: str, why: str) -> UserError:
    return UserError(
        f"model.weights: the weights of {source} {why}",
        "weights of this network, or of its backbone",
        "model.weights=none, or a network that they are of",
    )
