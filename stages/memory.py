"""How much memory there is, and how much a training step wants."""

import resource
from dataclasses import dataclass
from pathlib import Path

import keras
import psutil
import tensorflow as tf

from stages.complexity import cost_of_step, peak_of_inference
from stages.errors import UserError
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings

_CGROUPS = Path("/sys/fs/cgroup")

_MIB = 2**20

_SPREAD = 1.15
"""How much more a step takes than its tensors: scratch memory of convolutions, and what the allocator cannot reuse."""

_RUNTIME = 32 * _MIB
"""Of TensorFlow's threads and input pipeline."""

_PER_OPERATION = 40 * 2**10
"""Bytes that an operation takes in the graphs of a replica's step and of validation, traced and optimized."""

_GPU_RUNTIME = 128 * _MIB
"""Of cuDNN's workspace and the like; graphs are in the memory of the host."""


SCORING_BYTES = 256 * _MIB
"""Limit of what a batch of validation, evaluation and the like takes in one memory: a host's, or a GPU's."""


@dataclass(frozen=True)
class Estimate:
    """What training takes on this host, or on each GPU, in bytes, besides what the process has taken already.

    fixed: gradients, the optimizer's slots, averages, and copies of the weights for the best epoch and checkpoints.
    per_example: of a replica's share of a batch, computed at once. per_picture: of an input batch.
    replicas: of the whole batch; sharing: those of them that share this memory. scoring: a batch of the validation.

    Measured against the growth of the resident set with Adam on a CPU (batch: estimate, measured, MiB): cnn 28 px 128:
    101, 99; cnn 96 px 64: 332, 412; cnn_photo 160 px 32: 299, 349; MobileNetV2 32 px 4: 399, 389; 96 px 16: 531, 555;
    160 px 16: 907, 831, on two replicas: 1150, 1245; 288 px 8: 1269, 1046; EfficientNetV2B0 96 px 16: 845, 913. So it
    is off by -19 to +21 %. See `python -m benchmarks.memory`.
    """

    fixed: int
    per_example: float
    per_picture: float
    replicas: int
    sharing: int
    parts: int
    scoring: int = 0

    def of(self, batch_size: int) -> int:
        """Returns the bytes that a batch of `batch_size` examples takes, over all replicas."""
        share = -(-batch_size // self.replicas)
        at_once = -(-share // self.parts)
        step = self.sharing * (at_once * self.per_example + share * self.per_picture)
        return round(self.fixed + max(step, self.scoring))

    def largest_batch(self, available: int) -> int:
        """Returns the largest batch that fits: a power of two, or a multiple of the replicas where those do not fit.

        0: not even one example a replica does.
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


def estimate(model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings) -> Estimate:
    """Returns what training `model` takes. What pictures in memory take is not counted, as they are there already."""
    network, optimizer, sharing = model.network, settings.optimizer, _sharing(strategy)
    weights = sum(_bytes(variable) for variable in network.variables)
    trained = sum(_bytes(variable) for variable in network.trainable_variables)
    slots = {"adam": 2, "adamw": 2}.get(optimizer.name, 1 if getattr(optimizer, "momentum", 0) else 0)
    kept = (slots + (1 if optimizer.ema_momentum else 0)) * trained
    copies = 0 if _on_gpus(strategy) else 2 * weights + kept  # the best epoch's, and a checkpoint on its way to disk
    summed = 2 * trained  # each replica's gradients, and their means
    picture = 4 * int(tf.TensorShape(dataset.image_shape).num_elements())
    cost = cost_of_step(network)
    runtime = _GPU_RUNTIME if _on_gpus(strategy) else _RUNTIME + sharing * cost.operations * _PER_OPERATION
    validated = min(max(settings.batch_size, 256), scoring_batch(network, strategy), len(dataset.val))
    return Estimate(
        fixed=sharing * (kept + summed) + copies + runtime,
        per_example=_SPREAD * cost.peak,
        per_picture=_ahead(strategy) * picture,
        replicas=strategy.in_sync,
        sharing=sharing,
        parts=optimizer.accumulation,
        scoring=round(_scoring_bytes(network, strategy) * -(-validated * sharing // strategy.in_sync)),
    )


def scoring_batch(network: keras.Model, strategy: Strategy | None = None) -> int:
    """Returns how many examples fit into SCORING_BYTES at a time, over all replicas; one a replica at least.

    It depends on the network and the devices alone, not on what is free, so that every run has the same batches.

    Args:
        strategy: None: one CPU.
    """
    replicas, sharing = (strategy.in_sync, _sharing(strategy)) if strategy is not None else (1, 1)
    memories = replicas // sharing
    return max(int(SCORING_BYTES / max(_scoring_bytes(network, strategy), 1)) * memories, replicas)


def _scoring_bytes(network: keras.Model, strategy: Strategy | None) -> float:
    """Returns the bytes that one example takes in inference, with the input's elements."""
    picture = 4 * int(tf.TensorShape(network.input_shape[1:]).num_elements())
    return _SPREAD * peak_of_inference(network) + _ahead(strategy) * picture


def _ahead(strategy: Strategy | None) -> float:
    """Returns how many elements the input prepares for each that is computed (stages/batches.py), on CPUs."""
    if strategy is None:
        return 6
    return 1 if _on_gpus(strategy) else 2 + 4 / _sharing(strategy)


def check_memory(
    model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings, available: int | None = None
) -> dict[str, int]:
    """Returns what to record of the memory that training takes: `memory_estimate_mib`.

    Args:
        available: bytes that there are; None: as many as this machine or its smallest GPU has left.

    Raises:
        UserError: where they are too few. It names the largest batch that fits.
    """
    wanted = estimate(model, dataset, strategy, settings)
    needed = wanted.of(settings.batch_size)
    if strategy.coordinator is not None:  # the workers compute, each on a machine of its own
        return {"memory_estimate_mib": round(needed / _MIB)}
    there = available if available is not None else _free_on_gpus(strategy) or available_memory()
    if needed > there:
        fitting = wanted.largest_batch(there)
        raise UserError(
            f"train.batch_size={settings.batch_size} takes about {needed / _MIB:,.0f} MiB of memory, and "
            f"{there / _MIB:,.0f} are left",
            f"{fitting} and less" if fitting else "a smaller network or smaller pictures, as not one example fits",
            f"train.batch_size={fitting}" if fitting else "model=cnn",
        )
    return {"memory_estimate_mib": round(needed / _MIB)}


def available_memory() -> int:
    """Returns how many bytes of main memory this process can still take.

    The least of what the machine has left, what the process's control groups allow (Linux, v2 and v1; cached files
    count as free, as the kernel drops them) and what is left of its address space (`ulimit -v`). Swap does not count.
    Source: docs.kernel.org/admin-guide/cgroup-v2.html#memory.
    """
    left = [psutil.virtual_memory().available, *_left_of_cgroups()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - psutil.Process().memory_info().vms)
    return max(min(left), 0)


def _left_of_cgroups() -> list[int]:
    """Returns what each control group that holds this process has left, in bytes; none where there are no limits."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    left = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            root = _CGROUPS / controllers
            # A container sees its own group as the root, under whatever name the host knows it.
            own = root / name.lstrip("/")
            left += [_left(folder) for folder in {root, own, *own.parents} if folder.is_relative_to(root)]
    return [value for value in left if value is not None]


def _left(folder: Path) -> int | None:
    """Returns what a control group has left, or None where it sets no limit."""
    for limit_file, used_file, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, used = int((folder / limit_file).read_text()), int((folder / used_file).read_text())
            facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return limit - used + int(facts.get(cached, 0))
        except (OSError, ValueError):  # no such file; `max`, which is no limit
            continue
    return None


def _bytes(variable: object) -> int:
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)  # type: ignore[attr-defined]
    return int(shape.num_elements()) * int(dtype.size)


def _on_gpus(strategy: Strategy) -> bool:
    return all("GPU" in device for device in strategy.devices)


def _sharing(strategy: Strategy) -> int:
    """Returns how many replicas share one memory: a GPU has its own, those on this host's CPU have one together."""
    if _on_gpus(strategy) or strategy.in_sync == 1:
        return 1
    return len(strategy.distribution.extended.worker_devices)


def _free_on_gpus(strategy: Strategy) -> int | None:
    """Returns the bytes that the fullest of this host's GPUs has left; None where training is not on GPUs alone."""
    if not _on_gpus(strategy):
        return None
    from tensorflow.python.client import device_lib  # the public API has what is taken, and not what there is

    limits = {device.name: device.memory_limit for device in device_lib.list_local_devices()}
    free = []
    for device in tf.config.list_logical_devices("GPU"):
        name = "/device:" + device.name.rpartition("/device:")[2]
        if name in limits:
            free.append(limits[name] - tf.config.experimental.get_memory_info(name.removeprefix("/device:"))["current"])
    return min(free, default=None)
