"""The choice whether XLA compiles the gradients: on GPUs, or where it measures faster."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from stages.data.batches import Batch
from stages.distribution.collectives import mean_over_workers
from stages.errors import UserError
from stages.optimization.gradients import Gradients, has_synchronized_layers
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings

ROUNDS = 5


class Choice(NamedTuple):
    """The gradients to train with, whether XLA compiles them, and why."""

    gradients: Gradients
    jit: bool
    reason: str


def choose_jit(
    settings: TrainSettings, strategy: Strategy, model: Model, dataset: Dataset, build: Callable[[bool], Gradients]
) -> Choice:
    """Builds the gradients, compiled by XLA or not, as `settings.jit` says.

    Args:
        build: returns the gradients, compiled or not.

    Raises:
        UserError: where `on` is impossible.
    """
    obstacle = _obstacle(strategy, model)
    if settings.jit == "off":
        return Choice(build(False), False, "as asked")
    if obstacle:
        if settings.jit == "on":
            raise UserError(f"train.jit=on: {obstacle}", ("auto", "off", "measure"), "train.jit=off")
        return Choice(build(False), False, obstacle)
    if settings.jit == "auto":
        on_gpus = all("GPU" in device for device in strategy.devices)
        reason = "on GPUs" if on_gpus else "XLA is slower for convolutions on CPUs; train.jit=measure tries it"
        return Choice(build(on_gpus), on_gpus, reason)
    batch = _first_batch(dataset, settings.batch_size, strategy)
    try:
        compiled = build(True)
        _seconds(compiled, batch)
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        reason = next((line for line in str(error).splitlines() if "XLA" in line or "nimplemented" in line), str(error))
        if settings.jit == "on":
            raise UserError(
                f"train.jit=on: XLA cannot compile this network ({reason.splitlines()[0][:200]})",
                ("auto", "off"),
                "train.jit=off",
            ) from error
        return Choice(build(False), False, "XLA cannot compile this network")
    if settings.jit == "on":
        return Choice(compiled, True, "as asked")
    candidates = {True: compiled, False: build(False)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS + 1):  # interleaved, because the load of the machine varies
        for jit, gradients in candidates.items():
            times[jit].append(_seconds(gradients, batch))
    # Workers must agree, or they would differ in the last digits.
    on, off = (mean_over_workers(strategy, statistics.median(times[jit][1:])) for jit in (True, False))
    reason = f"measured {on * 1000:.2f} ms with XLA, {off * 1000:.2f} ms without"
    return Choice(candidates[on < off], on < off, reason)


def _obstacle(strategy: Strategy, model: Model) -> str:
    if strategy.layers is not None:
        return "XLA compiles for one device, and the layers are on several"
    if strategy.fixed_shapes:
        return "a TPU compiles the whole step itself"
    if strategy.in_sync > 1 and has_synchronized_layers(model.network):
        return "a synchronized BatchNorm communicates with other replicas, which compiled code cannot"
    return ""


def _first_batch(dataset: Dataset, batch_size: int, strategy: Strategy) -> Batch:
    rows = min(-(-batch_size // strategy.in_sync), len(dataset.train))
    images, labels = dataset.train.images[:rows], dataset.train.labels[:rows]
    targets = tf.constant(labels) if dataset.mixing is None else tf.one_hot(labels, dataset.num_classes)
    return tf.cast(images, tf.float32), targets, tf.ones([rows], tf.float64)


def _seconds(gradients: Gradients, batch: Batch) -> float:
    began = time.perf_counter()
    start = tf.constant(0, tf.int64)
    result = gradients(batch, start, start, tf.constant(1.0, gradients.dtype))
    for gradient in result.gradients:
        gradient.numpy()  # waits
    return time.perf_counter() - began
