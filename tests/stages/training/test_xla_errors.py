"""An error of XLA is reported as one, and every other error is not blamed on XLA."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.settings.model import MlpSettings
from stages.settings.train import ScheduleSettings, SgdSettings, TrainSettings
from stages.train import train
from tests.stages.experiments import built_of, one_device, real_digits, start
from tests.stages.experiments import settings as usual

SHORT: dict[str, Any] = {
    "epochs": 1, "batch_size": 32, "seed": 1, "schedule": ScheduleSettings(), "optimizer": SgdSettings(), "jit": "on",
}  # fmt: skip


@keras.saving.register_keras_serializable()
class InPython(keras.layers.Layer):
    """Computes in Python, which XLA cannot compile."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda values: values, [inputs], inputs.dtype), inputs.shape)


def in_python(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    layers = [keras.layers.Flatten(), InPython(), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *layers])


def test_an_operation_that_xla_lacks_is_named() -> None:
    dataset, place = real_digits(64), one_device()
    model = built_of({"_target_": f"{__name__}.in_python"}, dataset, place)
    with pytest.raises(
        UserError, match=r"train\.jit: XLA cannot compile .*unsupported operations.*Try: train\.jit=off"
    ):
        train(model, dataset, place, TrainSettings(**SHORT))


@pytest.mark.parametrize("jit", [True, False])
def test_an_operation_that_fails_without_xla_too_is_not_its_fault(jit: bool) -> None:
    dataset, place = real_digits(39), one_device()
    loop = start(place, built_of(MlpSettings(hidden=[4]), dataset, place), dataset, usual(batch_size=16), jit=jit)
    gradients: Any = loop.step.gradients
    missing = tf.errors.UnimplementedError(None, None, "DNN library is not found")
    assert loop.is_of_xla(missing) == jit  # the same function works without XLA
    assert not loop.is_of_xla(tf.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 5)"))

    def fails(*_: object) -> None:
        raise missing

    fails.structured_input_signature = gradients._function.structured_input_signature  # type: ignore[attr-defined]
    gradients._function = fails
    assert not loop.is_of_xla(missing)
