"""A run in float64 is float64 throughout: what NumPy computes from the same batches, to 1e-12."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from stages.augment import augment
from stages.data.batches import training_input
from stages.results import Dataset, Model, Normalization, Strategy
from stages.settings import train as kinds
from stages.settings.data import AugmentSettings
from stages.train import fit, train
from tests.stages.experiments import built_of, elements, mirrored, one_device, real_digits

pytestmark = pytest.mark.slow

BOUND = 1e-12
PENALTY = 0.003
DATASET = replace(real_digits(17), scalings={"images": Normalization((1 / 15,), (-0.1,))})
"""Of batches of 8 the last has one example. None of the numbers here is one of float32."""

SGD: dict[str, Any] = {
    "learning_rate": 0.3, "momentum": 0.7, "weight_decay": 0.03, "clip_norm": 0.6, "ema_momentum": 0.9,
}  # fmt: skip
SETTINGS = kinds.TrainSettings(
    epochs=3, batch_size=8, seed=1, label_smoothing=0.1, class_weights=[0.1 * number for number in range(1, 11)],
    restore_best=False, optimizer=kinds.SgdSettings(**SGD, ema_use=True),
    schedule=kinds.CosineSettings(warmup_epochs=1, final_share=0.1),
)  # fmt: skip


def linear(input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Return a network whose gradient is known, with a penalty."""
    images = keras.Input(input_shape)
    dense = keras.layers.Dense(num_classes, kernel_regularizer=keras.regularizers.L2(PENALTY))
    return keras.Model(images, dense(keras.layers.Flatten()(images)))


def built(where: Strategy, dataset: Dataset = DATASET) -> Model:
    network = {"_target_": f"{__name__}.linear"}
    return built_of(network, dataset, where, "float64")


def rate(given: kinds.TrainSettings, step: int, per_epoch: int) -> float:
    peak, schedule = given.optimizer.learning_rate, given.schedule
    if not isinstance(schedule, kinds.CosineSettings):
        return peak
    warmup = round(schedule.warmup_epochs * per_epoch)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / (given.epochs * per_epoch - warmup)
    return peak * ((1 - schedule.final_share) * 0.5 * (1 + np.cos(np.pi * done)) + schedule.final_share)


def loss_and_gradients(
    weights: list[np.ndarray], batch: tuple[np.ndarray, ...], given: kinds.TrainSettings, dataset: Dataset
) -> tuple[float, list[np.ndarray], float]:
    """Return the mean loss of a batch, its penalty included, the gradients of kernel and bias, the sum of weights."""
    images, labels = batch[:2]
    (scale,), (offset,) = dataset.scalings["images"].scale, dataset.scalings["images"].offset
    inputs = (images.astype(np.float64) * scale + offset).reshape(len(images), -1)
    target = labels.astype(np.float64) if labels.ndim == 2 else np.eye(10)[labels]
    counts = target @ np.array(given.class_weights) if given.class_weights else np.ones(len(images))
    target = (1 - given.label_smoothing) * target + given.label_smoothing / 10
    logits = inputs @ weights[0] + weights[1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    total = float(counts.sum())
    loss = float((-(target * logs).sum(axis=1) * counts).sum() / total + PENALTY * np.square(weights[0]).sum())
    slope = (np.exp(logs) * target.sum(axis=1, keepdims=True) - target) * counts[:, None] / total
    return loss, [inputs.T @ slope + 2 * PENALTY * weights[0], slope.sum(axis=0)], total


def reference(
    weights: list[np.ndarray], given: kinds.TrainSettings, dataset: Dataset
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the weights, or their averages where these are used, and the mean loss of each epoch.

    Keras takes the mean of the batches' losses, by their rows.
    """
    batches = elements(training_input(dataset, given.batch_size, given.seed, given.epochs))
    per_epoch, optimizer = len(batches) // given.epochs, given.optimizer
    weights = [weight.copy() for weight in weights]
    first, second, averages = ([np.zeros_like(weight) for weight in weights] for _ in range(3))
    sums = np.zeros((given.epochs, 2))
    for step, batch in enumerate(batches):
        loss, gradients, total = loss_and_gradients(weights, batch, given, dataset)
        total = len(batch[0]) if isinstance(given, kinds.FitSettings) else total
        sums[step // per_epoch] += loss * total, total
        norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
        shrunk = optimizer.clip_norm / max(norm, optimizer.clip_norm) if optimizer.clip_norm else 1.0
        now = rate(given, step, per_epoch)
        for index, gradient in enumerate(gradients):
            if index == 0:  # the bias does not decay
                weights[index] -= weights[index] * optimizer.weight_decay * now
            if isinstance(optimizer, kinds.SgdSettings):
                first[index] = optimizer.momentum * first[index] - now * gradient * shrunk
                weights[index] += first[index]
            else:
                one, two = optimizer.beta_1, optimizer.beta_2
                first[index] += (gradient * shrunk - first[index]) * (1 - one)
                second[index] += (np.square(gradient * shrunk) - second[index]) * (1 - two)
                corrected = now * np.sqrt(1 - two ** (step + 1)) / (1 - one ** (step + 1))
                weights[index] -= corrected * first[index] / (np.sqrt(second[index]) + optimizer.epsilon)
            kept = 1 - optimizer.ema_momentum if step else 1.0
            averages[index] += kept * (weights[index] - averages[index])
    return (averages if optimizer.ema_use else weights), sums[:, 0] / sums[:, 1]


def assert_equal_to_numpy(
    where: Strategy, given: kinds.TrainSettings, dataset: Dataset = DATASET, engine: Any = train
) -> None:
    made = built(where, dataset)
    weights, losses = reference(made.network.get_weights(), given, dataset)
    trained = engine(made, dataset, where, given)
    for found, expected in zip(trained.model.network.get_weights(), weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=BOUND, atol=BOUND)
    np.testing.assert_allclose([row["train/loss"] for row in trained.history], losses, rtol=BOUND)
    val = (dataset.val.images[:], dataset.val.target_values)
    plain = replace(given, label_smoothing=0.0, class_weights=None)
    expected_loss = loss_and_gradients(weights, val, plain, dataset)[0]
    assert trained.history[-1]["val/loss"] == pytest.approx(expected_loss, rel=BOUND)


@pytest.mark.parametrize("replicas", [2, 4])
def test_everything_at_once_is_numpy(replicas: int) -> None:
    """A warm-up and a cosine, momentum, decay, clipping, averages, smoothing, class weights, a last batch of one.

    On one device with the batch in parts, below.
    """
    assert_equal_to_numpy(mirrored(replicas), SETTINGS)


@pytest.mark.parametrize(("replicas", "changes"), [
    (1, {"optimizer": kinds.SgdSettings(**SGD, accumulation=3)}),
    (3, {"optimizer": kinds.SgdSettings(**SGD, accumulation=5)}),
    (2, {"optimizer": kinds.AdamWSettings(learning_rate=0.01, clip_norm=0.6), "schedule": kinds.ScheduleSettings()}),
], ids=["parts of a batch", "parts of replicas", "adamw"])  # fmt: skip
def test_one_at_a_time_is_numpy(replicas: int, changes: dict[str, Any]) -> None:
    assert_equal_to_numpy(one_device() if replicas == 1 else mirrored(replicas), replace(SETTINGS, **changes))


def test_mixed_images_are_numpy() -> None:
    assert_equal_to_numpy(mirrored(3), SETTINGS, augment(DATASET, AugmentSettings(mixup=0.4, cutmix=1.0)))


def test_fit_is_numpy() -> None:
    """Keras' own losses and means, too. Its `val_loss` would include smoothed labels."""
    given = kinds.FitSettings(epochs=3, batch_size=8, seed=1, restore_best=False, class_weights=SETTINGS.class_weights)
    given = replace(given, optimizer=kinds.SgdSettings(momentum=0.7, learning_rate=0.3))
    assert_equal_to_numpy(one_device(), replace(given, schedule=kinds.ScheduleSettings()), engine=fit)
