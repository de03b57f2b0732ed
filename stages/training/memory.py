"""Memory of a training: estimated before it begins, and refused where it does not fit."""

from dataclasses import dataclass

import keras
import tensorflow as tf

from stages.data.free_memory import available_memory
from stages.errors import UserError
from stages.evaluation.eval_step import BATCH
from stages.networks.complexity import Cost, cost_of_step
from stages.networks.inference_memory import (
    ALLOCATOR_OVERHEAD,
    elements_ahead,
    inference_bytes,
    on_gpus,
    replicas_per_memory,
    scoring_batch,
)
from stages.optimization.optimizers import build_optimizer
from stages.results import Dataset, Model, Strategy
from stages.settings.optimizer import CustomOptimizerSettings, OptimizerSettings
from stages.settings.train import TrainSettings

_MIB = 2**20


_RUNTIME = 32 * _MIB
"""Bytes of TensorFlow's threads and input pipeline."""

_PER_OPERATION = 40 * 2**10
"""Bytes of an operation in the graphs of a replica's step and of validation, traced and optimized."""

_GPU_RUNTIME = 128 * _MIB
"""Bytes of cuDNN's workspace and the like; graphs are in the host's memory."""


@dataclass(frozen=True)
class Estimate:
    """Memory that training takes on this host, or on each GPU, in bytes, in addition to what the process has taken.

    fixed: gradients, the optimizer's slots, the EMA, and copies of the weights for the best epoch and checkpoints.
    per_example: of a per-replica batch, computed at once. per_image: of an input batch.
    replicas: of the whole batch; sharing: how many of them share this memory. scoring: a batch of the validation.

    Measured against the growth of the resident set with Adam on a CPU (batch: estimate, measured, MiB): cnn 28 px 128:
    101, 99; cnn 96 px 64: 332, 412; cnn_photo 160 px 32: 299, 349; MobileNetV2 32 px 4: 399, 389; 96 px 16: 531, 555;
    160 px 16: 907, 831, on two replicas: 1150, 1245; 288 px 8: 1269, 1046; EfficientNetV2B0 96 px 16: 845, 913. Its
    error is -19 to +21 %. See `python -m benchmarks.memory_estimates`.
    """

    fixed: int
    per_example: float
    per_image: float
    replicas: int
    sharing: int
    parts: int
    scoring: int = 0

    def of(self, batch_size: int) -> int:
        """Returns the bytes that a batch of `batch_size` examples takes, over all replicas."""
        per_replica = -(-batch_size // self.replicas)
        per_part = -(-per_replica // self.parts)
        step = self.sharing * (per_part * self.per_example + per_replica * self.per_image)
        return round(self.fixed + max(step, self.scoring))

    def largest_batch(self, available: int) -> int:
        """Returns the largest batch that fits: a power of two, or a multiple of the replicas if below them.

        0: not even one example a replica fits.
        """
        if self.of(self.replicas) > available:
            return 0
        fitting = self.replicas
        while self.of(2 * fitting) <= available:
            fitting *= 2
        step = fitting // self.replicas // 2 * self.replicas
        while step >= self.replicas:  # bisection, over multiples of the replicas
            fitting += step if self.of(fitting + step) <= available else 0
            step = step // self.replicas // 2 * self.replicas
        power = 1 << fitting.bit_length() - 1
        return power if power >= self.replicas else fitting


def estimate(
    model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings, cost: Cost | None = None
) -> Estimate:
    """Returns the memory of training `model`, without the images in memory, which are there already.

    Args:
        cost: of a step, where it is known; else a step is traced for it.
    """
    network = model.network
    optimizer = settings.optimizer
    sharing = replicas_per_memory(strategy)
    weights = sum(_bytes(variable) for variable in network.variables)
    trained = sum(_bytes(variable) for variable in network.trainable_variables)
    slots = _slot_bytes(model, optimizer) + (trained if optimizer.ema_momentum else 0)
    copies = 0 if on_gpus(strategy) else 2 * weights + slots  # the best epoch's, and a checkpoint on its way to disk
    summed = 2 * trained  # each replica's gradients, and their means
    image = 4 * int(tf.TensorShape(dataset.image_shape).num_elements())
    cost = cost or cost_of_step(network)
    runtime = _GPU_RUNTIME if on_gpus(strategy) else _RUNTIME + sharing * cost.operations * _PER_OPERATION
    validated = min(max(settings.batch_size, BATCH), scoring_batch(network, strategy), len(dataset.val))
    return Estimate(
        fixed=sharing * (slots + summed) + copies + runtime,
        per_example=ALLOCATOR_OVERHEAD * cost.peak,
        per_image=elements_ahead(strategy) * image,
        replicas=strategy.in_sync,
        sharing=sharing,
        parts=optimizer.accumulation,
        scoring=round(inference_bytes(network, strategy) * -(-validated * sharing // strategy.in_sync)),
    )


def check_memory(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    available: int | None = None,
    cost: Cost | None = None,
) -> dict[str, int]:
    """Returns the estimate of the training's memory to record: `memory_estimate_mib`.

    Args:
        available: in bytes; None: the free memory of this machine or of its fullest GPU.
        cost: of a step, where it is known.

    Raises:
        UserError: where it is too little. It names the largest batch that fits.
    """
    estimated = estimate(model, dataset, strategy, settings, cost)
    needed = estimated.of(settings.batch_size)
    if strategy.coordinator is not None:  # the workers compute, on their own machines
        return {"memory_estimate_mib": round(needed / _MIB)}
    free = available if available is not None else _free_on_gpus(strategy) or available_memory()
    if needed > free:
        fitting = estimated.largest_batch(free)
        raise UserError(
            f"train.batch_size={settings.batch_size} takes about {needed / _MIB:,.0f} MiB of memory, and "
            f"{free / _MIB:,.0f} are left",
            f"{fitting} and less" if fitting else "a smaller network or smaller images, as not one example fits",
            f"train.batch_size={fitting}" if fitting else "model=cnn",
        )
    return {"memory_estimate_mib": round(needed / _MIB)}


def _slot_bytes(model: Model, settings: OptimizerSettings) -> int:
    """Returns the bytes that the optimizer keeps for the trained weights.

    A custom optimizer is built to find out, for one variable at a time.
    """
    variables = model.network.trainable_variables
    if not isinstance(settings, CustomOptimizerSettings):
        slots = {"adam": 2, "adamw": 2}.get(settings.name, 1 if getattr(settings, "momentum", 0) else 0)
        return slots * sum(_bytes(variable) for variable in variables)
    total = 0
    for variable in variables:
        with tf.device("/cpu:0"):
            stand_in = keras.Variable(initializer="zeros", shape=variable.shape, dtype=variable.dtype)
            optimizer = build_optimizer(settings, settings.learning_rate, model.policy)
            before = len(optimizer.variables)
            optimizer.build([stand_in])
        total += sum(_bytes(slot) for slot in optimizer.variables[before:])
    return total


def _bytes(variable: object) -> int:
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)  # type: ignore[attr-defined]
    return int(shape.num_elements()) * int(dtype.size)


def gpu_peak(strategy: Strategy) -> dict[str, float]:
    """Returns `memory/gpu_peak_mib`, the most memory that this host's fullest GPU has held; nothing without GPUs."""
    if not on_gpus(strategy):
        return {}
    names = [device.name.rpartition("/device:")[2] for device in tf.config.list_logical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in names]
    return {"memory/gpu_peak_mib": max(peaks) / _MIB} if peaks else {}


def _free_on_gpus(strategy: Strategy) -> int | None:
    """Returns the free bytes of the fullest of this host's GPUs; None where training is not on GPUs alone."""
    if not on_gpus(strategy):
        return None
    from tensorflow.python.client import device_lib  # the public API has the used memory, but not the limit

    limits = {device.name: device.memory_limit for device in device_lib.list_local_devices()}
    free = []
    for device in tf.config.list_logical_devices("GPU"):
        name = "/device:" + device.name.rpartition("/device:")[2]
        if name in limits:
            free.append(limits[name] - tf.config.experimental.get_memory_info(name.removeprefix("/device:"))["current"])
    return min(free, default=None)
