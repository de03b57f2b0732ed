"""Compilation of training steps by XLA: whether, for which batches, and what its errors mean."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.errors import UserError
from stages.networks.keras_internals import all_layers
from stages.results import Model, Strategy
from stages.settings.train import TrainSettings


def choose_jit(settings: TrainSettings, strategy: Strategy, model: Model) -> bool:
    """Return whether XLA compiles the steps; `auto` is on if it can and all devices are GPUs.

    Raises:
        UserError: If `on` is impossible.
    """
    obstacle = ""
    if strategy.layers is not None:
        obstacle = "XLA compiles for one device, but the layers are on several"
    elif strategy.fixed_shapes:
        obstacle = "a TPU compiles the whole step itself"
    elif strategy.in_sync > 1 and has_synchronized_layers(model.network):
        obstacle = "a synchronized BatchNorm communicates with other replicas, which compiled code cannot do"
    if settings.jit == "on" and obstacle:
        raise UserError(f"train.jit=on: {obstacle}", ("auto", "off"), "train.jit=off")
    if settings.jit != "auto":
        return settings.jit == "on"
    return not obstacle and all("GPU" in device for device in strategy.devices)


def has_synchronized_layers(network: keras.Model) -> bool:
    """Return whether a layer shares its batch statistics between the replicas."""
    return any(getattr(layer, "synchronized", False) for layer in all_layers(network))


def rows_for_xla(settings: TrainSettings, examples: int, replicas: int) -> int:
    """Return how many rows XLA compiles at least: those of the smallest usual part of a batch.

    It is 0 if all batches have the same size, as there is nothing to choose then.

    Args:
        settings: The settings of the training.
        examples: The number of examples of the training split.
        replicas: The number of replicas that share a batch.
    """
    usual = min(settings.batch_size, examples)
    if examples % usual == 0:
        return 0
    for parts in (replicas, settings.optimizer.accumulation):
        usual = usual // parts if usual >= parts else usual  # fewer examples than parts: each has all of them
    return usual


def for_usual_rows(compiled: Callable[..., Any], plain: Callable[..., Any], rows: int) -> Callable[..., Any]:
    """Return a function that calls `compiled` for batches of at least `rows` examples, and `plain` for smaller ones.

    XLA compiles each number of rows separately, which takes longer than the one step of an epoch that needs it. Padding
    a smaller batch would change the statistics of BatchNorm.

    Args:
        compiled: The function, compiled by XLA. Its first argument is a batch.
        plain: The same function without XLA.
        rows: See `rows_for_xla`. 0: all batches are usual.
    """
    if not rows:
        return compiled

    def chosen(batch: Example, *others: Any) -> Any:
        is_usual = tf.shape(batch.targets)[0] >= rows  # int32: decided on the host, also with a GPU
        return tf.cond(is_usual, lambda: compiled(batch, *others), lambda: plain(batch, *others))

    return chosen


def names_xla(error: tf.errors.OpError) -> bool:
    """Return whether the message of an error says that XLA cannot compile an operation."""
    return "tf2xla" in str(error) or "XLA_" in str(error)


def reason_of_xla(error: tf.errors.OpError) -> str:
    """Return why XLA cannot compile a function, in at most 200 characters, without Python's stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    noise = ("Graph execution error", "Detected at node", "File ", "<stack traces", "[[")
    told = [line for line in lines if line and not line.startswith(noise)]
    return next((line for line in told if "unsupported operations" in line), (told or lines)[0])[:200]
