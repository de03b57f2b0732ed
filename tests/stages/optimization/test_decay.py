"""Weight decay acts on the weights that `optimizer.decay_exclude` leaves to it, and on no others."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.optimization.optimizers import build_optimizer, decay_excluded
from stages.results import Dataset, Model, Strategy
from stages.settings.train import AdamWSettings, CustomOptimizerSettings, SgdSettings
from tests.stages.experiments import PLACES, after_steps, built_of, one_device, real_digits, settings
from tests.stages.training.stopped import run

pytestmark = pytest.mark.slow


class RMSNorm(keras.layers.Layer):
    """A custom normalization, whose scale has a name and a shape of its own, by which it decays."""

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(1, *shape[1:]), initializer="ones", name="factor")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs * self.factor


class WeightNorm(keras.layers.Wrapper):
    """A wrapper that normalizes a layer, whose kernel decays as any other."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.layer(inputs)


class Custom(keras.layers.Layer):
    """A matrix named bias, a vector of another name, a matrix that is neither."""

    def build(self, shape: Any) -> None:
        self.biases = self.add_weight(shape=(1, shape[-1]), name="bias")
        self.gain = self.add_weight(shape=(shape[-1],), initializer="ones", name="gain")
        self.unbiased = self.add_weight(shape=(1, shape[-1]), name="unbiased")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs * self.gain + self.biases + self.unbiased


def varied(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Return a network with weights of every kind."""
    layers = keras.layers
    inputs = keras.Input(input_shape)
    outputs = layers.Conv2D(8, 3, padding="same", name="conv")(inputs)
    outputs = layers.BatchNormalization(name="batch")(outputs)
    outputs = layers.GroupNormalization(4, name="group")(outputs)
    outputs = layers.LayerNormalization(axis=(1, 2), name="layer")(outputs)
    outputs = WeightNorm(layers.Conv2D(8, 1, name="inner"), name="wrapper")(outputs)
    outputs = Custom(name="custom")(RMSNorm(name="rms")(layers.GlobalAveragePooling2D()(outputs)))
    tokens = layers.Embedding(4, 8, name="embedding")(keras.ops.cast(keras.ops.zeros_like(outputs[:, :3]), "int32"))
    attended = layers.MultiHeadAttention(2, 4, name="attention")(tokens, tokens)
    outputs = layers.Concatenate()([outputs, layers.Flatten()(attended)])
    return keras.Model(inputs, layers.Dense(num_classes, name="head", dtype=layers.Dense(1).variable_dtype)(outputs))


def built(dataset: Dataset, where: Strategy, policy: str = "float32") -> Model:
    return built_of({"_target_": f"{__name__}.varied"}, dataset, where, policy)


DECAYED = {
    "conv/kernel", "inner/kernel", "custom/unbiased", "embedding/embeddings", "query/kernel", "key/kernel",
    "value/kernel", "attention_output/kernel", "head/kernel", "rms/factor", "layer/gamma", "layer/beta",
}  # fmt: skip


def short(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def test_decay_leaves_out_biases_and_vectors_unless_it_is_told_otherwise() -> None:
    network = built(real_digits(64), one_device()).network
    every = {short(v.path) for v in network.trainable_variables}
    default = SgdSettings().decay_exclude
    assert every - {short(v.path) for v in decay_excluded(network, default)} == DECAYED
    assert decay_excluded(network, []) == []
    assert {short(v.path) for v in decay_excluded(network, ["*embeddings"])} == {"embedding/embeddings"}
    assert {short(v.path) for v in decay_excluded(network, ["bias"])} == {p for p in every if p.endswith("/bias")}
    with pytest.raises(UserError, match=r"decay_exclude=\*embedings does not match any weight"):
        decay_excluded(network, [*default, "*embedings"])


def test_a_custom_optimizer_decays_by_what_is_typed_0_too_and_else_by_its_own_default() -> None:
    def decays(name: str, **typed: Any) -> set[float | None]:
        custom = build_optimizer(CustomOptimizerSettings(_target_=f"keras.optimizers.{name}", **typed), 0.1)
        return {custom.weight_decay, getattr(custom, "adam_weight_decay", custom.weight_decay)}

    for name, own in {"AdamW": 0.004, "Muon": 0.004, "Lion": None, "Lamb": None}.items():
        assert (decays(name), decays(name, weight_decay=0.0)) == ({own}, {0.0})
        assert decays(name, weight_decay=0.1) == {0.1}


WITHOUT_LOSS = {"class_weights": [0.0] * 10, "batch_size": 25}
"""The gradient is 0, so that weight decay alone changes a weight."""
DECAY: dict[str, Any] = {"learning_rate": 0.5, "weight_decay": 0.25}
OPTIMIZERS: dict[str, Any] = {
    "sgd": SgdSettings(**DECAY),
    "adamw": AdamWSettings(**DECAY),
    "lion": CustomOptimizerSettings(_target_="keras.optimizers.Lion", **DECAY),
}
CASES = [("adamw", "mirrored 3", "mixed_float16"), ("lion", "central_storage 2", "float64")]


def assert_decayed(before: Model, after: Model, steps: int) -> None:
    pairs = list(zip(before.network.trainable_variables, after.network.trainable_variables, strict=True))
    for start, end in pairs:
        factor = (1 - 0.5 * 0.25) ** steps if short(start.path) in DECAYED else 1.0
        values = np.asarray(start, np.float64)
        np.testing.assert_allclose(np.asarray(end, np.float64), values * factor, rtol=1e-6, err_msg=start.path)
    assert sum(float(np.abs(np.asarray(start)).sum()) > 0 for start, _ in pairs) > len(DECAYED)


@pytest.mark.parametrize(("name", "where", "policy"), CASES)
def test_excluded_weights_keep_their_values_to_the_bit(name: str, where: str, policy: str) -> None:
    dataset, place = real_digits(125), PLACES[where]()
    given = settings(optimizer=OPTIMIZERS[name], **WITHOUT_LOSS)
    after, _ = after_steps(place, dataset, given, 3, lambda data, where: built(data, where, policy))
    assert_decayed(built(dataset, place, policy), after, 3)


def test_fit_excludes_them_too() -> None:
    dataset = real_digits(50)
    given: dict[str, Any] = {**WITHOUT_LOSS, "epochs": 1, "restore_best": False, "steps_per_call": None}
    after, _ = run(one_device(), None, dataset, built, by="fit", optimizer=OPTIMIZERS["sgd"], **given)
    assert_decayed(built(dataset, one_device()), after.model, 2)
