"""Settings of the `model` stage: the network, and the precision it computes in."""

from dataclasses import dataclass
from typing import Any

from omegaconf import II, MISSING

from stages.settings.ranges import choice, number


@dataclass(kw_only=True)
class PrecisionSettings:
    """The dtypes of computation and of variables, by Keras' policy names."""

    policy: str = choice(
        "float32", "float32", "mixed", "mixed_float16", "mixed_bfloat16", "bfloat16", "float16", "float64"
    )
    """`mixed`: float16 on GPUs with tensor cores (compute capability 7.0 and up), else bfloat16."""


@dataclass(kw_only=True)
class MlpSettings:
    """Dense layers on the flattened picture."""

    _target_: str = "stages.networks.mlp.mlp"
    hidden: list[int] = number([256, 256], at_least=1, unit="units in each hidden layer")
    dropout: float = number(0.0, at_least=0, below=1)


@dataclass(kw_only=True)
class CnnSettings:
    """Convolutions and pooling, then dropout and one dense layer."""

    _target_: str = "stages.networks.cnn.cnn"
    filters: list[int] = number([32, 64], at_least=1, unit="filters in each convolution")
    kernel_size: int = number(3, at_least=1, unit="pixels")
    dropout: float = number(0.5, at_least=0, below=1)


@dataclass(kw_only=True)
class ModelSettings:
    """A network by its function, and what the function is given."""

    _target_: str = "stages.model.model"
    network: Any = MISSING
    """`_target_`: a function `(input_shape, num_classes, **settings) -> keras.Model`, and its settings."""
    outputs: str = choice("auto", "auto", "logits", "probabilities")
    """What the network returns; `auto` finds out by calling it on two pictures."""
    precision: PrecisionSettings = II("precision")
    seed: int = II("seed")
