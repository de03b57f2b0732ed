"""Memory of a training: a warning where an estimate exceeds what is free, and one line where it runs out."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from stages.data.free_memory import available_memory
from stages.errors import UserError
from stages.networks.complexity import output_bytes
from stages.reporter import Reporter
from stages.results import Model, Strategy
from stages.settings.train import TrainSettings

_MIB = 2**20

_COPIES = 6
"""Of the weights, beside themselves: gradients, their sum, two slots, the best epoch's and a checkpoint's."""


def warn_of_memory(model: Model, strategy: Strategy, settings: TrainSettings, reporter: Reporter) -> None:
    """Warn where this host's memory may not suffice.

    The estimate holds the outputs of all layers for a batch, or for its part with accumulation, and copies of the
    weights. Nothing is said of GPUs and of other machines: TensorFlow does, once it fails.
    """
    examples = -(-settings.batch_size // settings.optimizer.accumulation)
    weights = 4 * model.network.count_params()
    needed = examples * sum(output_bytes(model.network)) + _COPIES * weights
    is_here = strategy.coordinator is None and not any("GPU" in device for device in strategy.devices)
    free = available_memory()
    if is_here and needed > free:
        reporter.warn(
            f"train.batch_size={settings.batch_size} may take {needed / _MIB:,.0f} MiB of memory, and "
            f"{free / _MIB:,.0f} are free: a smaller one, or optimizer.accumulation, takes less"
        )


@contextmanager
def memory_for_batch(setting: str, batch_size: int) -> Iterator[None]:
    """Turn TensorFlow's error for exhausted memory into one line.

    Raises:
        UserError: that names half of the batch.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        half = max(batch_size // 2, 1)
        raise UserError(
            f"{setting}={batch_size} does not fit in memory ({error.message.partition(chr(10))[0][:200]})",
            f"{half} or less" if half < batch_size else "a smaller network or smaller images",
            f"{setting}={half}" if half < batch_size else "model=cnn",
        ) from error


def gpu_peak(strategy: Strategy) -> dict[str, float]:
    """Return `memory/gpu_peak_mib`, the most memory that this host's fullest GPU has held; nothing without GPUs."""
    if not all("GPU" in device for device in strategy.devices):
        return {}
    names = [device.name.rpartition("/device:")[2] for device in tf.config.list_logical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in names]
    return {"memory/gpu_peak_mib": max(peaks) / _MIB} if peaks else {}
