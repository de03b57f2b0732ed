"""Short trainings on real digits: every synchronous strategy must reach the weights of one device.

The tests hold each of them to its bound, `python -m benchmarks.strategies` prints how far apart they are.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from stages.data.batches import steps_per_epoch
from stages.data.split import Split
from stages.features.images import ImageFeature
from stages.load.digits import digits
from stages.model import model
from stages.networks.precision import keras_floats
from stages.normalize import normalize
from stages.optimization.optimizers import build_optimizer, learning_rate
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.settings.data import DigitsSettings, NormalizeSettings
from stages.settings.model import CnnSettings, MlpSettings, ModelSettings, PrecisionSettings
from stages.settings.train import (
    AdamSettings,
    AdamWSettings,
    CosineSettings,
    CustomOptimizerSettings,
    ScheduleSettings,
    SgdSettings,
    TrainSettings,
)
from stages.training.engine import Setup
from stages.training.parameter_server import ParameterServer
from stages.training.synchronous import Synchronous
from stages.training.task_loss import TaskLoss

STEPS = 50


@dataclass(frozen=True)
class Case:
    """One training.

    bound: the largest difference of any weight from one device's.
    overflow: whether one image is so bright that float16 cannot hold what the network makes of it; each example is seen
        once then.
    """

    bound: float = 1e-5
    examples: int = 900
    network: Any = field(default_factory=lambda: CnnSettings(filters=[8, 16], dropout=0.0))
    policy: str = "float32"
    jit: bool = False
    overflow: bool = False
    train: dict[str, Any] = field(default_factory=dict)


def with_batch_norm(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Return a network whose batch statistics are shared by all replicas."""
    return keras.Sequential(
        [
            keras.layers.Input(input_shape),
            keras.layers.Conv2D(8, 3, use_bias=False),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes, dtype="float32"),
        ]
    )


class OwnLoss(keras.Model):
    """A subclassed network with a loss, a penalty and a metric of its own."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(num_classes, kernel_regularizer=keras.regularizers.L2(1e-3), dtype="float32")
        self.sureness = keras.metrics.Mean(name="sureness")

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self.dense(self.flatten(inputs))
        if training:
            self.add_loss(1e-3 * keras.ops.mean(keras.ops.square(outputs)))
        return outputs

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        probabilities = keras.ops.softmax(y_pred)
        self.sureness.update_state(keras.ops.max(probabilities, axis=-1))
        targets = keras.ops.one_hot(keras.ops.cast(y, "int32"), y_pred.shape[-1])
        return keras.ops.mean(keras.ops.square(probabilities - targets)) + keras.ops.sum(self.losses)


def with_own_loss(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Return a built `OwnLoss`."""
    network = OwnLoss(num_classes)
    network(keras.ops.zeros((1, *input_shape)))
    return network


def _sgd(**changes: Any) -> dict[str, Any]:
    return {"optimizer": SgdSettings(**changes)}


CASES: dict[str, Case] = {
    "SGD, even batches": Case(examples=896, train=_sgd()),
    "SGD, a last batch of 4": Case(train=_sgd()),
    "SGD, a last batch of 1": Case(examples=897, train=_sgd()),
    "SGD, batches of 63": Case(train={**_sgd(), "batch_size": 63}),
    "Adam, a last batch of 1": Case(examples=897, train={"optimizer": AdamSettings()}),
    "AdamW, decay 0.1": Case(train={"optimizer": AdamWSettings(weight_decay=0.1)}),
    "norm clipped at 0.5": Case(train=_sgd(learning_rate=0.05, clip_norm=0.5)),
    "accumulation in 3 parts": Case(train=_sgd(accumulation=3)),
    "EMA 0.9": Case(train=_sgd(ema_momentum=0.9)),
    "cosine after a warm-up": Case(train={**_sgd(), "schedule": CosineSettings(warmup_epochs=1)}),
    "smoothed labels, class weights": Case(
        train={**_sgd(), "label_smoothing": 0.1, "class_weights": [float(1 + index % 3) for index in range(10)]}
    ),
    "BatchNorm synchronized": Case(examples=897, network={"_target_": f"{__name__}.with_batch_norm"}, train=_sgd()),
    "own loss, penalty and metric": Case(network={"_target_": f"{__name__}.with_own_loss"}, train=_sgd()),
    "Adam, dropout": Case(
        examples=897, network=CnnSettings(filters=[8, 16], dropout=0.5), train={"optimizer": AdamSettings()}
    ),
    "XLA (mlp)": Case(network=MlpSettings(hidden=[64]), jit=True, train=_sgd()),
    "float64": Case(bound=1e-12, policy="float64", train=_sgd()),
    "mixed_bfloat16": Case(bound=2e-2, policy="mixed_bfloat16", train=_sgd()),
    "mixed_float16": Case(bound=2e-2, policy="mixed_float16", train=_sgd()),
    "mixed_float16, an overflow": Case(bound=2e-2, policy="mixed_float16", overflow=True, train=_sgd()),
    "bfloat16": Case(bound=5e-2, policy="bfloat16", train=_sgd()),
    "float16": Case(bound=5e-2, policy="float16", train=_sgd()),
}
"""The rows of the table in docs/how-it-works/exactness.md."""

TOGETHER = "float64: clipped, in 3 parts, with an EMA"
COMBINED: dict[str, Case] = {
    TOGETHER: Case(
        bound=1e-12,
        examples=897,
        policy="float64",
        train=_sgd(learning_rate=0.05, clip_norm=0.5, accumulation=3, ema_momentum=0.9),
    ),
    "Nadam: float16, clipped, an EMA, decay, an overflow": Case(
        bound=2e-2,
        policy="mixed_float16",
        overflow=True,
        train={
            "optimizer": CustomOptimizerSettings(
                _target_="keras.optimizers.Nadam", clip_norm=0.5, ema_momentum=0.9, weight_decay=0.1
            )
        },
    ),
    "Muon: clipped, in 2 parts, an EMA, decay": Case(
        bound=2e-7,
        examples=195,
        train={
            "batch_size": 63,
            "optimizer": CustomOptimizerSettings(
                _target_="keras.optimizers.Muon",
                learning_rate=1e-3,
                clip_norm=0.5,
                accumulation=2,
                ema_momentum=0.9,
                weight_decay=0.1,
            ),
        },
    ),
}
"""What several of them ask for at once: a test that trains it has tried each."""


def real_digits(examples: int) -> Dataset:
    """Return scaled digits, the training split cut to `examples`, or repeated up to them."""
    dataset = normalize(digits(DigitsSettings(split_seed=1)), NormalizeSettings())
    rows = np.arange(examples) % len(dataset.train)
    split = Split.of_images(dataset.train.images[rows], dataset.train.targets[rows])
    return dataclasses.replace(dataset, train=split)


def with_a_bright_image(dataset: Dataset) -> Dataset:
    """Return the data set with one training image that is so bright that the gradients overflow in float16."""
    images = np.array(dataset.train.images[:], np.float32)
    images[17] = 1e30
    features = {"images": ImageFeature.of(images.shape[1:], images.dtype, (0.0, 1e30))}
    return dataclasses.replace(dataset, train=Split.of_images(images, dataset.train.target_values), features=features)


def build(case: Case, where: Strategy, dataset: Dataset) -> Model:
    """Return the model of `case`, not trained."""
    precision = PrecisionSettings(policy=case.policy)
    return model(dataset, where, ModelSettings(network=case.network, precision=precision, seed=1))


def setup_of(
    where: Strategy,
    model: Model,
    dataset: Dataset,
    optimizer: keras.optimizers.Optimizer,
    settings: TrainSettings,
    jit: bool = False,
) -> Setup:
    """Return what an engine is built from, for the loss that `settings` ask for."""
    task = model.task.for_training(settings, dataset.train.target_values)
    given = dataclasses.replace(settings, jit="on" if jit else "off")
    return Setup(where, model, model, dataset, task, given, optimizer, TaskLoss(task), Reporter())


def engine_of(  # noqa: PLR0913  # what a training consists of
    where: Strategy,
    model: Model,
    dataset: Dataset,
    optimizer: keras.optimizers.Optimizer,
    settings: TrainSettings,
    jit: bool = False,
    first_step: int = 0,
) -> Synchronous | ParameterServer:
    """Return an engine that is about to take `first_step`."""
    setup = setup_of(where, model, dataset, optimizer, settings, jit)
    engine = Synchronous(setup) if where.coordinator is None else ParameterServer(setup)
    engine.begin(first_step, settings.epochs)
    return engine


def run(case: Case, where: Strategy, steps: int = STEPS) -> tuple[np.ndarray, dict[str, float]]:
    """Return all weights as one vector, the EMA where there is one, and the means of the steps."""
    dataset = real_digits(64 * steps if case.overflow else case.examples)
    if case.overflow:
        dataset = with_a_bright_image(dataset)
    built = build(case, where, dataset)
    given = {"batch_size": 64, "schedule": ScheduleSettings(), **case.train}
    settings = TrainSettings(epochs=100, seed=1, steps_per_call=steps, **given)
    with where.distribution.scope(), keras_floats(built.policy):
        rate = learning_rate(settings.optimizer.learning_rate, settings.schedule, 15, 4)
        optimizer = build_optimizer(settings.optimizer, rate)
    engine = engine_of(where, built, dataset, optimizer, settings, case.jit)
    state = engine.state
    if isinstance(engine, Synchronous):
        means = engine.run(0, steps)
    else:
        per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        for first in range(0, steps, per_epoch):
            means = engine.run(first, min(per_epoch, steps - first))
        means["counted"] = float(engine.step.sums.totals.read()["examples"])
    state.ema.assign_to_weights()
    if state.loss_scale is not None:
        means["skipped_steps"] = float(state.loss_scale.skipped_steps.numpy())
        means["loss_scale"] = float(state.loss_scale.value.numpy())
    return flat(built.network), means


def flat(network: keras.Model) -> np.ndarray:
    """Return all weights as one float64 vector, in an order that does not depend on where they are."""
    return np.concatenate([np.asarray(weight, np.float64).ravel() for weight in network.get_weights()])
