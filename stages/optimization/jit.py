"""The choice whether XLA compiles the gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from stages.errors import UserError
from stages.optimization.gradients import has_synchronized_layers
from stages.results import Model, Strategy
from stages.settings.train import FitSettings, TrainSettings


def choose_jit(settings: TrainSettings, strategy: Strategy, model: Model) -> tuple[bool, str]:
    """Return whether XLA compiles the gradients, and why; `auto` is on where all devices are GPUs.

    Raises:
        UserError: where `on` is impossible.
    """
    obstacle = ""
    if strategy.layers is not None:
        obstacle = "XLA compiles for one device, and the layers are on several"
    elif strategy.fixed_shapes:
        obstacle = "a TPU compiles the whole step itself"
    elif strategy.in_sync > 1 and has_synchronized_layers(model.network):
        obstacle = "a synchronized BatchNorm communicates with other replicas, which compiled code cannot"
    if settings.jit == "on" and obstacle:
        raise UserError(f"train.jit=on: {obstacle}", ("auto", "off"), "train.jit=off")
    if settings.jit != "auto":
        return settings.jit == "on", "as asked"
    if isinstance(settings, FitSettings):
        return False, "Keras takes the steps"
    on_gpus = all("GPU" in device for device in strategy.devices)
    return on_gpus and not obstacle, obstacle or ("on GPUs" if on_gpus else "XLA is slower for convolutions on CPUs")


@contextmanager
def xla_refusals() -> Iterator[None]:
    """Turn TensorFlow's error for an operation that XLA cannot compile into one line.

    Raises:
        UserError: with XLA's reason.
    """
    try:
        yield
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        reason = next((line for line in str(error).splitlines() if "XLA" in line or "nimplemented" in line), None)
        if reason is None:
            raise
        problem = f"train.jit=on: XLA cannot compile this network ({reason[:200]})"
        raise UserError(problem, ("auto", "off"), "train.jit=off") from error
