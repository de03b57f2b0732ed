"""What the check measures: networks, precisions and sizes, in full and tiny."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.settings.model import ApplicationSettings, CnnSettings, ResnetSettings


@dataclass(frozen=True)
class Network:
    """A network on synthetic images."""

    name: str
    side: int
    channels: int
    batch: int
    examples: int
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of the network that differ from the project's defaults."""

    @property
    def settings(self) -> object:
        """The settings that the project builds the network from."""
        match self.name:
            case "cnn":
                return CnnSettings(**self.arguments)
            case "resnet20":
                return ResnetSettings(**self.arguments)
            case "mobilenet_v2":
                return ApplicationSettings(name="MobileNetV2", arguments=dict(self.arguments))
        return ApplicationSettings(name="EfficientNetV2S", arguments=dict(self.arguments))


@dataclass(frozen=True)
class Precision:
    """A Keras policy, with TensorFlow's TF32 on or off."""

    policy: str
    tf32: bool

    @property
    def name(self) -> str:
        return f"{self.policy}, TF32 {'on' if self.tf32 else 'off'}" if self.policy == "float32" else self.policy


@dataclass(frozen=True)
class Tolerance:
    """The largest difference that the law on weights allows, relative to the largest change of a weight."""

    value: float
    reason: str


PRECISIONS = (
    Precision("float32", tf32=False),
    Precision("float32", tf32=True),
    Precision("mixed_float16", tf32=False),
    Precision("mixed_bfloat16", tf32=False),
)

TOLERANCES: Mapping[Precision, Tolerance] = dict(
    zip(
        PRECISIONS,
        (
            Tolerance(1e-2, "23 bits of mantissa; sums are added in a different order"),
            Tolerance(1e-1, "factors rounded to 10 bits of mantissa"),
            Tolerance(1e-1, "all numbers rounded to 10 bits of mantissa"),
            Tolerance(5e-1, "all numbers rounded to 7 bits of mantissa"),
        ),
        strict=True,
    )
)
"""A rounded step starts the next one from slightly different weights, so differences grow over the steps."""

STEPS_COMPARED = 20
RATE_COMPARED = 1e-3
"""Learning rate of the law on weights. At 0.01, resnet20 amplifies rounding by a factor of 100,000 within 50 steps."""


@dataclass(frozen=True)
class Plan:
    """Sizes of a check."""

    rows: Mapping[Network, tuple[tuple[Precision, bool], ...]]
    """Networks, each with its precisions, without and with XLA."""
    run: tuple[str, ...]
    """Settings of the pipeline's runs."""
    run_shape: tuple[int, int, int]
    """Shape of their images."""
    kill_step: int
    """Step in the middle of an epoch and between two checkpoints."""
    round_seconds: float
    """Seconds that each way takes per round."""
    rounds: int
    """The most rounds of a row."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Networks that are not measured, each with the reason."""

    @property
    def networks(self) -> list[str]:
        return [*(network.name for network in self.rows), *self.left_out]


def _run(shape: tuple[int, int, int], examples: int, *settings: str) -> tuple[str, ...]:
    height, width, channels = shape
    return (
        "data=synthetic", f"data.height={height}", f"data.width={width}", f"data.channels={channels}",
        f"data.examples={examples}", "train.epochs=3", "train.steps_per_call=1", "tracking=off",
        "optimizer=sgd", "pipeline.inspect=null", "pipeline.evaluate=null", "deterministic=true",
        "train.callbacks=[{_target_:tests.chaos.killer.Kill}]", *settings,
    )  # fmt: skip


ALL = tuple((precision, jit) for precision in PRECISIONS for jit in (False, True))
FIRST = ((PRECISIONS[0], False),)

FULL = Plan(
    rows={
        Network("cnn", 28, 1, 128, 6400): ALL,
        Network("resnet20", 32, 3, 128, 6400): ALL,
        Network("mobilenet_v2", 224, 3, 64, 512): ALL,
        Network("efficientnet_v2_s", 224, 3, 32, 256): ALL,
    },
    run=_run(
        (28, 28, 1),
        1440,
        "model=cnn",
        "train.batch_size=128",
        "train.checkpoint_every_steps=4",
    ),
    run_shape=(28, 28, 1),
    kill_step=17,
    round_seconds=1.0,
    rounds=5,
)  # fmt: skip

TINY = Plan(
    rows={
        Network("cnn", 28, 1, 32, 320, {"filters": [8, 16]}): (
            *((PRECISIONS[0], jit) for jit in (False, True)),
            *((PRECISIONS[3], jit) for jit in (False, True)),
        ),
        Network("resnet20", 32, 3, 16, 160, {"blocks": 1, "filters": [8, 16]}): FIRST,
    },
    run=_run(
        (28, 28, 1), 320, "model=cnn", "model.network.filters=[8,16]", "train.batch_size=32",
        "train.checkpoint_every_steps=4", "export.reload=here",
    ),
    run_shape=(28, 28, 1),
    kill_step=14,
    round_seconds=0.1,
    rounds=3,
    left_out=dict.fromkeys(("mobilenet_v2", "efficientnet_v2_s"), "it takes too long to build for --tiny"),
)  # fmt: skip
