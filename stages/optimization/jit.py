"""The choice whether XLA compiles the gradients."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from stages.data.examples import spec_of
from stages.errors import UserError
from stages.optimization.gradients import Gradients, has_synchronized_layers
from stages.results import Dataset, Model, Strategy


class Choice(NamedTuple):
    """The gradients to train with, whether XLA compiles them, and why."""

    gradients: Gradients
    jit: bool
    reason: str


def choose_jit(
    wanted: str, strategy: Strategy, model: Model, dataset: Dataset, build: Callable[[bool], Gradients]
) -> Choice:
    """Build the gradients, compiled by XLA or not.

    Args:
        wanted: `on`, `off`, or `auto`: on where all devices are GPUs.
        build: returns the gradients, compiled or not.

    Raises:
        UserError: where `on` is impossible.
    """
    if wanted == "off":
        return Choice(build(False), False, "as asked")
    obstacle = _obstacle(strategy, model)
    on_gpus = all("GPU" in device for device in strategy.devices)
    if wanted == "auto":
        reason = obstacle or ("on GPUs" if on_gpus else "XLA is slower for convolutions on CPUs")
        return Choice(build(on_gpus and not obstacle), on_gpus and not obstacle, reason)
    if obstacle:
        raise UserError(f"train.jit=on: {obstacle}", ("auto", "off"), "train.jit=off")
    compiled = build(True)
    try:
        _compute_once(compiled, dataset)
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        reason = next((line for line in str(error).splitlines() if "XLA" in line or "nimplemented" in line), str(error))
        raise UserError(
            f"train.jit=on: XLA cannot compile this network ({reason.splitlines()[0][:200]})",
            ("auto", "off"),
            "train.jit=off",
        ) from error
    return Choice(compiled, True, "as asked")


def _obstacle(strategy: Strategy, model: Model) -> str:
    if strategy.layers is not None:
        return "XLA compiles for one device, and the layers are on several"
    if strategy.fixed_shapes:
        return "a TPU compiles the whole step itself"
    if strategy.in_sync > 1 and has_synchronized_layers(model.network):
        return "a synchronized BatchNorm communicates with other replicas, which compiled code cannot"
    return ""


def _compute_once(gradients: Gradients, dataset: Dataset) -> None:
    one = tf.nest.map_structure(lambda spec: tf.zeros([1, *spec.shape[1:]], spec.dtype), spec_of(dataset))
    start = tf.constant(0, tf.int64)
    gradients(one, start, start, tf.constant(1.0, gradients.dtype))
