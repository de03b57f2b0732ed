"""Features of a frozen backbone: computed once where nothing is augmented, cached, and trained on.

A frozen backbone returns the same features of an example in every epoch, so the head trains on them as it would behind
the backbone, in the same order and with the same dropout, up to the rounding of float32.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from stages.data.examples import first_inputs
from stages.data.split import Split
from stages.features.texts import TextFeature
from stages.features.vectors import VectorFeature
from stages.networks.complexity import scoring_batch
from stages.networks.keras_internals import graph_of, is_graph_of_layers, nodes_of, set_untracked
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.storage.cache import Contents, cached
from stages.transfer.pretrained import backbone_of, infers, is_frozen

BATCH = 64
"""Examples of a batch for the backbone, at most."""

LARGEST_BYTES = 2**31
"""Limit for features, which are kept in memory; beyond it, every epoch goes through the backbone."""

POOLING = (keras.layers.GlobalAveragePooling2D, keras.layers.GlobalMaxPooling2D)

FEATURES = "features"
"""Name of the features of the backbone."""

Arrays = Mapping[str, np.ndarray]
"""Features of the splits `train` and `val`, float32 [N, …, d]."""


class OnFeatures(keras.Model):
    """The layers behind the backbone. `variables` are those of `whole`, so that random layers keep their order."""

    @property
    def variables(self) -> list[keras.Variable]:
        whole = vars(self).get("whole")
        return super().variables if whole is None else whole.variables


def on_features(  # noqa: PLR0913  # everything that decides whether features can replace the inputs
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter,
    cache: Path | None,
    obstacle: str = "",
) -> tuple[Model, Dataset, str]:
    """Return the head of `model`, the features that it trains on, and a parameter to record.

    The weights of the head belong to the model. If features cannot replace the inputs, `model` and `dataset` are
    returned unchanged, with the reason. The splits `train` and `val` are features; `test` is not used.

    Args:
        model: The model with a frozen backbone.
        dataset: The data set.
        strategy: The distribution strategy.
        settings: The settings of the training.
        reporter: Receives the progress.
        cache: The folder that runs share, for `features-<key>`. None: the features are kept in memory only.
        obstacle: Why the engine that takes the steps cannot train on features; empty if it can.
    """
    cut = obstacle or _cut(model, dataset, strategy, settings)
    if isinstance(cut, str):
        return model, dataset, f"off: {cut}"
    front, head = cut
    splits = {"train": dataset.train, "val": dataset.val}
    shape = head.input_shape[1:]
    compute = partial(_compute, front, splits, reporter)
    arrays: Arrays
    if cache is None:
        arrays = compute()
    else:
        place = cache / f"features-{_key(front, dataset)}"
        arrays = cached(place, lambda _: Contents({}, compute()), reporter)[0].arrays
    train, val = (
        Split({FEATURES: arrays[name]}, split.targets, weights=split.weights) for name, split in splits.items()
    )
    features = {FEATURES: VectorFeature(shape, "float32")}
    data = replace(dataset, train=train, val=val, test=val, features=features)
    size = " × ".join(map(str, shape))
    return replace(model, network=head, metrics=(), rebuild=None), data, f"on: {size} per example"


def _cut(
    model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings
) -> tuple[keras.Model, OnFeatures] | str:
    """Return the two parts of the network, as `_in_two`, or why it is not cut."""
    reasons = {
        "train.cache_features=off": settings.cache_features == "off",
        "no backbone is frozen": not is_frozen(model.network),
        "the backbone may be random in training (use model.frozen=true)": not infers(model.network),
        "images are augmented": bool(dataset.transforms),
        "the network defines its own loss or metrics": model.has_own_loss or bool(model.metrics),
        "the strategy distributes the model over devices": strategy.layers is not None,
        "features are stored in float32, not in float64": model.policy == "float64",
        "the network has several inputs": len(dataset.train.inputs) > 1,
        "the network is not a graph of layers": not is_graph_of_layers(model.network.core),
    }
    obstacle = next((reason for reason, holds in reasons.items() if holds), "")
    if obstacle:
        return obstacle
    backbone = backbone_of(model.network)
    assert backbone is not None
    try:
        with strategy.distribution.scope():
            front, head = _in_two(model.network, backbone)
    except ValueError:  # Keras' error for layers that bypass the backbone
        return "the head uses more than the output of the backbone"
    examples = len(dataset.train) + len(dataset.val)
    if 4 * examples * int(np.prod(head.input_shape[1:])) > LARGEST_BYTES:
        return f"the features would take more than {LARGEST_BYTES / 2**30:g} GiB"
    in_backbone = {id(variable) for variable in backbone.variables}
    if any(id(variable) not in in_backbone for variable in front.variables):
        return "layers before the backbone are random or trainable"
    return front, head


def _in_two(network: keras.Model, backbone: keras.Model) -> tuple[keras.Model, OnFeatures]:
    """Cut behind the backbone, or behind global pooling that follows it, which makes features small.

    Returns:
        The front, from the network's input, such as unscaled images, to features [b, …, d]; and the head, the rest.

    Raises:
        ValueError: where it has several inputs or features, or a layer of the head needs others than features.
    """
    graph = graph_of(network.core)
    assert graph is not None
    nodes = nodes_of(graph)
    [node] = [node for node in nodes if node.operation is backbone]
    [tensor] = node.output_tensors
    if len(tensor.shape) not in (2, 4) or None in tensor.shape[1:]:
        raise ValueError
    after = [node for node in nodes if any(inputs is tensor for inputs in node.input_tensors)]
    if len(after) == 1 and isinstance(after[0].operation, POOLING):
        [tensor] = after[0].output_tensors
    [_], [output] = graph.inputs, graph.outputs
    before, behind = keras.Model(graph.inputs, tensor), keras.Model(tensor, output)
    [given] = network.inputs
    plain = keras.layers.Identity(dtype="float32")(before(network.scaled(given)))
    features = keras.Input(tensor.shape[1:], dtype="float32")
    head = OnFeatures(features, behind(features))
    set_untracked(head, "whole", network)  # tracked, its layers would be counted twice
    return keras.Model(given, plain), head


def _compute(front: keras.Model, splits: Mapping[str, Split], reporter: Reporter) -> dict[str, np.ndarray]:
    """Compute the features of `splits` on one device."""
    size = min(scoring_batch(front), BATCH)
    [given] = front.inputs
    shape = tf.TensorSpec((None, *given.shape[1:]), given.dtype)
    compute = tf.function(lambda inputs: front(inputs, training=False), input_signature=[shape], autograph=False)
    total = sum(-(-len(split) // size) for split in splits.values())
    features: dict[str, np.ndarray] = {}
    done = 0
    reporter.progress(done, total, "features of the backbone")
    for name, split in splits.items():
        parts = []
        [column] = split.inputs.values()
        for start in range(0, len(split), size):
            parts.append(compute(tf.cast(column[start : start + size], given.dtype)).numpy())
            done += 1
            reporter.progress(done, total, "features of the backbone")
        features[name] = np.concatenate(parts)
    return features


def _key(front: keras.Model, dataset: Dataset) -> str:
    """Return 32 hexadecimal digits that change with the inputs, the layers before the cut and their weights.

    The layers are known by what they make of two examples, rounded to three digits.
    """
    features = front(first_inputs(dataset.train, 2), training=False)
    digest = hashlib.blake2b(digest_size=16)
    known = [one.digest if isinstance(one, TextFeature) else None for one in dataset.features.values()]
    sizes = (len(dataset.train), len(dataset.val), front.input_shape, features.shape)
    for part in (keras.__version__, known, sizes):
        digest.update(f"{part}\n".encode())
    examples = [split.described.digests for split in (dataset.train, dataset.val)]
    for array in (*examples, tf.cast(features, tf.float16).numpy(), *front.get_weights()):
        digest.update(array.tobytes())
    return digest.hexdigest()
