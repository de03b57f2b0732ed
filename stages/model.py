"""The `model` stage: builds the network in the strategy's scope, in the precision that was asked for."""

import importlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.results import Dataset, Model, Normalization, Record, Strategy
from stages.seeds import derive
from stages.settings.model import ModelSettings


def model(dataset: Dataset, strategy: Strategy, settings: ModelSettings) -> Model:
    """Returns a model whose first layer scales the pixels and whose weights are a function of the seed.

    Raises:
        UserError: where the network cannot be found or built, or its output is not float32 [b, classes].
    """
    policy = resolve_policy(settings.precision.policy, strategy)
    before = keras.config.dtype_policy()
    keras.utils.set_random_seed(derive(settings.seed, "model"))
    try:
        keras.config.set_dtype_policy(policy)
        with strategy.distribution.scope():
            network = _with_scaling(dataset.normalization, dataset.image_shape, _build(dataset, settings.network))
    finally:
        keras.config.set_dtype_policy(before)
    pictures = tf.cast(dataset.train.images[:2], tf.float32)
    outputs = _check_outputs(network(pictures, training=False), dataset.num_classes, settings.outputs)
    counts = {
        "parameters": network.count_params(),
        "trainable_parameters": int(sum(np.prod(w.shape) for w in network.trainable_weights)),
    }
    return Model(network, outputs, policy, Record(params={**counts, "outputs": outputs, "policy": policy}))


def resolve_policy(policy: str, strategy: Strategy) -> str:
    """Returns the Keras policy that `policy` means on the strategy's devices.

    `mixed` is float16 where every device is a GPU with tensor cores (compute capability 7.0 and up), else bfloat16.
    """
    if policy != "mixed":
        return policy
    gpus = [gpu for gpu in tf.config.list_physical_devices("GPU") if any("GPU" in name for name in strategy.devices)]
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    fast = details and all(detail.get("compute_capability", (0, 0)) >= (7, 0) for detail in details)
    return "mixed_float16" if fast else "mixed_bfloat16"


def _build(dataset: Dataset, network: Any) -> keras.Model:
    given = dict(network if isinstance(network, Mapping) else vars(network))
    target = str(given.pop("_target_", ""))
    module, _, name = target.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"model.network._target_={target} cannot be imported ({error})",
            "a function (input_shape, num_classes, **settings) -> keras.Model",
            "model.network._target_=stages.networks.cnn.cnn",
        ) from error
    try:
        return function(dataset.image_shape, dataset.num_classes, **given)
    except ValueError as error:  # Keras' word for layers that do not fit
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"{target} cannot be built for pictures of shape {dataset.image_shape} with {given} ({first})",
            "layers that the pictures are large enough for",
            "model=mlp, or smaller or fewer layers",
        ) from error


def _with_scaling(scaling: Normalization, image_shape: tuple[int, int, int], network: keras.Model) -> keras.Model:
    # float32 whatever the policy: bfloat16 keeps 8 bits of a mantissa, too few for pixels that augmentation mixed.
    first = keras.layers.Rescaling(_numbers(scaling.scale), _numbers(scaling.offset), dtype="float32", name="scaling")
    inputs = keras.Input(image_shape, dtype="float32", name="images")
    return keras.Model(inputs, network(first(inputs)), name=network.name)


def _numbers(values: tuple[float, ...]) -> float | list[float]:
    return float(values[0]) if len(values) == 1 else [float(value) for value in values]


def _check_outputs(outputs: tf.Tensor, num_classes: int, declared: str) -> str:
    """Returns `logits` or `probabilities`. Mistaking one for the other trains to wrong numbers in silence."""
    if outputs.shape != (2, num_classes) or outputs.dtype != tf.float32:
        raise UserError(
            f"the network returns {outputs.dtype.name} of shape {tuple(outputs.shape)} for two pictures",
            f"float32 of shape (2, {num_classes})",
            f'a last layer keras.layers.Dense({num_classes}, dtype="float32")',
        )
    values = outputs.numpy()
    sums_to_one = bool(np.all(values >= 0) and np.allclose(values.sum(axis=1), 1.0, atol=1e-3))
    if declared == "probabilities" and not sums_to_one:
        raise UserError(
            "model.outputs=probabilities, but the rows of the network's output do not add up to 1",
            "auto, logits, probabilities",
            "model.outputs=auto",
        )
    if declared == "logits" and sums_to_one:
        raise UserError(
            "model.outputs=logits, but the rows of the network's output add up to 1",
            "auto, logits, probabilities",
            "model.outputs=auto",
        )
    return declared if declared != "auto" else "probabilities" if sums_to_one else "logits"
