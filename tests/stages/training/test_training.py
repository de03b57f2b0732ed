"""What a run of epochs may be asked for, under the strategies: the same history, whatever computes."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops

from stages.augment import augment
from stages.errors import UserError
from stages.networks.batch_norm import normalizing_by_batch
from stages.results import Strategy, Trained
from stages.settings import train as kinds
from stages.settings.data import AugmentSettings
from stages.settings.model import CnnPhotoSettings, MlpSettings
from stages.train import check, fit, train
from tests.stages.experiments import PLACES, built_of, flat, mirrored, one_device, real_digits, small_cnn, streamed
from tests.stages.images import Telling

pytestmark = pytest.mark.slow

NORMAL = {"_target_": "benchmarks.cases.with_batch_norm"}
"""A network with statistics, which the EMA averages with the weights."""

AVERAGED = kinds.SgdSettings(ema_momentum=0.9, ema_use=True)

FEATURES: dict[str, dict[str, Any]] = {
    "plateau, then early stopping": {
        "schedule": kinds.PlateauSettings(patience=1, decay_factor=0.5, final_share=0.2), "early_stopping_patience": 2,
        "monitor": "val_accuracy", "epochs": 8, "optimizer": kinds.SgdSettings(learning_rate=0.0002),
    },
    "EMA in use": {"optimizer": AVERAGED, "network": NORMAL},
    "EMA in use, last epoch": {"optimizer": AVERAGED, "network": NORMAL, "restore_best": False},
    "balanced classes, smoothed labels": {
        # A smaller epsilon would enlarge the rounding of small gradients, which differs between processors.
        "optimizer": kinds.AdamWSettings(learning_rate=0.001, epsilon=1e-2), "class_weights": "balanced",
        "label_smoothing": 0.1,
    },
}  # fmt: skip


def run(
    where: Strategy,
    engine: Any = train,
    settings: type = kinds.TrainSettings,
    is_streamed: bool = False,
    dropout: float = 0.0,
    folder: Path | None = None,
    **given: Any,
) -> tuple[Trained, np.ndarray]:
    dataset = streamed(real_digits(900)) if is_streamed else real_digits(900)
    network = given.pop("network", None)
    built = built_of(network, dataset, where) if network else small_cnn(dataset, where, dropout=dropout)
    defaults = {"epochs": 2, "batch_size": 60, "seed": 1, "schedule": kinds.ScheduleSettings()}
    defaults["optimizer"] = kinds.SgdSettings()
    trained = engine(built, dataset, where, settings(**{**defaults, **given}), folder=folder)
    return trained, flat(trained.model.network)


@functools.cache
def reference(given: str) -> tuple[Trained, np.ndarray]:
    """What one device makes of one of `FEATURES` or `BY_FIT`."""
    return run(one_device(), **{**FEATURES, **BY_FIT}[given])


@functools.cache
def usual() -> tuple[Trained, np.ndarray]:
    """What one device makes of two epochs without any feature."""
    return run(one_device(), dropout=0.3)


def assert_same_history(found: Trained, expected: Trained, bound: float, of_loss: float | None = None) -> None:
    assert len(found.history) == len(expected.history)
    for one, other in zip(found.history, expected.history, strict=True):
        for name, value in other.items():
            if "second" not in name and "wait" not in name:
                assert one[name] == pytest.approx(value, abs=of_loss if of_loss and name == "train/loss" else bound), (
                    name
                )


# Where variables are mirrored, every feature; which weights an epoch's end leaves behind is decided outside of the
# replicas. Elsewhere what is told from others by where its variables are. A plateau is found on the host.
CHOSEN = {
    "mirrored 2": [feature for feature in FEATURES if feature != "EMA in use, last epoch"],
    "central_storage 2": ["EMA in use"],
    "model_parallel 2": ["EMA in use"],
}


@pytest.mark.parametrize(("feature", "where"), [(feature, where) for where in CHOSEN for feature in CHOSEN[where]])
def test_a_run_is_that_of_one_device(feature: str, where: str, iterated: list[tf.data.Dataset]) -> None:
    """With images in memory, and with those that are read at each use."""
    is_streamed = feature == "EMA in use"
    found, weights = run(PLACES[where](), is_streamed=is_streamed, **FEATURES[feature])
    assert_without_autotuner(iterated)
    expected, expected_weights = reference(feature)
    assert_same_history(found, expected, 1e-5)
    assert np.abs(weights - expected_weights).max() <= 1e-5


@pytest.fixture
def iterated(monkeypatch: pytest.MonkeyPatch) -> list[tf.data.Dataset]:
    """The datasets of all iterators that are made from now on, on the host and on devices."""
    found: list[tf.data.Dataset] = []
    for kind, name in (
        (iterator_ops.OwnedIterator, "_create_iterator"),
        (multi_device_iterator_ops.OwnedMultiDeviceIterator, "__init__"),
    ):
        original = getattr(kind, name)

        def spy(self: Any, dataset: Any = None, *given: Any, original: Any = original, **named: Any) -> Any:
            if dataset is not None:
                found.append(dataset)
            return original(self, dataset, *given, **named)

        monkeypatch.setattr(kind, name, spy)
    return found


def assert_without_autotuner(iterated: list[tf.data.Dataset]) -> None:
    """Asserts that no iterator has one, which its end would wait for."""
    assert iterated
    assert [dataset.options().autotune.enabled for dataset in iterated] == [False] * len(iterated), (
        "the end of an iterator with an autotuner waits up to 60 s. If it is a device's iterator, after an upgrade of "
        "TensorFlow: see how OwnedMultiDeviceIterator creates it now, and change _keep_autotuners_from_devices in "
        "stages/data/batches.py"
    )


def test_a_plateau_lowers_the_rate_and_early_stopping_stops() -> None:
    rates = [row["train/learning_rate"] for row in reference("plateau, then early stopping")[0].history]
    assert rates[0] == pytest.approx(0.0002)
    assert 0.00004 <= min(rates) < 0.0002
    assert len(rates) < 8


def test_the_ema_is_kept_beside_the_weights(tmp_path: Path) -> None:
    """Not used, they are in a file: those that a run which uses them ends with, and validates: early, they lag."""
    optimizer = kinds.SgdSettings(ema_momentum=0.9)
    trained, weights = run(one_device(), folder=tmp_path, optimizer=optimizer, restore_best=False, network=NORMAL)
    unaveraged, plain = run(one_device(), restore_best=False, network=NORMAL)
    np.testing.assert_allclose(weights, plain, atol=1e-6)
    trained.model.network.load_weights(tmp_path / "checkpoints" / "ema.weights.h5")
    averages = flat(trained.model.network)
    used, expected = reference("EMA in use, last epoch")
    np.testing.assert_allclose(averages, expected, atol=1e-6)
    assert used.history[0]["train/loss"] == pytest.approx(unaveraged.history[0]["train/loss"], abs=1e-6)
    assert used.history[0]["val/loss"] > unaveraged.history[0]["val/loss"]
    assert np.abs(averages - plain).max() > 1e-3


DECAY = kinds.SgdSettings(learning_rate=0.05, weight_decay=0.01)
BY_FIT: dict[str, dict[str, Any]] = {
    "decay, 5 steps a call": {"optimizer": DECAY, "steps_per_call": 5},
    "balanced, smoothed, no decay": {"class_weights": "balanced", "label_smoothing": 0.1},
    "clipped, decay, 5 steps a call": {"optimizer": replace(DECAY, clip_norm=0.5), "steps_per_call": 5},
}


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("EMA in use, last epoch", "one device"),
        ("clipped, decay, 5 steps a call", "one device"),  # of replicas it is refused
        ("EMA in use", "mirrored 2"),
        ("balanced, smoothed, no decay", "one device"),  # of replicas it is refused
        ("decay, 5 steps a call", "mirrored 2"),
        ("EMA in use", "default"),  # Keras' own way without a strategy
    ],
)
def test_fit_equals_the_loop(given: str, where: str, iterated: list[tf.data.Dataset]) -> None:
    """With weights, the loss of an epoch is the mean of its batches', and the loop's is that of its examples."""
    theirs, their_weights = run(PLACES[where](), fit, kinds.FitSettings, **{**FEATURES, **BY_FIT}[given])
    assert_without_autotuner(iterated)
    ours, our_weights = reference(given)
    assert np.abs(our_weights - their_weights).max() <= 1e-6
    assert_same_history(theirs, ours, 1e-5, of_loss=1e-2 if "balanced" in given else None)


def test_replicas_of_fit_drop_what_one_device_drops() -> None:
    one, two = (run(place, fit, kinds.FitSettings, dropout=0.5, epochs=1)[1] for place in (one_device(), mirrored(2)))
    assert np.abs(one - two).max() <= 1e-6


def test_fit_refuses_what_keras_would_get_wrong() -> None:
    with pytest.raises(UserError, match=r"2 replicas share.*train.batch_size=63.*keras/issues/19891.*Try: train=loop"):
        run(mirrored(2), fit, kinds.FitSettings, batch_size=63)


def test_fit_that_diverges_stops() -> None:
    with pytest.raises(UserError, match=r"training diverged by step \d+ \(epoch 1\)"):
        run(one_device(), fit, kinds.FitSettings, optimizer=kinds.SgdSettings(learning_rate=1e30))


def test_class_weights() -> None:
    dataset = real_digits(900)
    counts = np.bincount(dataset.train.target_values)
    balanced = dataset.task.for_training(kinds.TrainSettings(class_weights="balanced"), dataset.train.target_values)
    assert balanced.loss.class_weights == pytest.approx(list(900 / (10 * counts)))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"has 2 numbers, but there are 10 classes\. Expected one number each for 0, 1"):
        dataset.task.for_training(kinds.TrainSettings(class_weights=[1.0, 2.0]), dataset.train.target_values)


def test_jit_is_chosen_and_told() -> None:
    chosen, _ = usual()
    assert chosen.record.params["jit"] == "off"
    with pytest.raises(UserError, match=r"train.jit: XLA cannot compile this network .*Try: train.jit=off"):
        run(one_device(), jit="on")  # deterministic MaxPoolGrad


def noisy(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Return a network that draws in every way that XLA can compile."""
    inputs = keras.Input(input_shape)
    outputs = keras.layers.GaussianNoise(0.1)(keras.layers.RandomFlip("horizontal")(inputs))
    outputs = keras.layers.Dense(32, "relu")(keras.layers.Flatten()(outputs))
    outputs = keras.layers.GaussianDropout(0.2)(keras.layers.Dropout(0.5)(outputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, dtype="float32")(outputs))


IN_STEP = AugmentSettings(rotation=0.1, brightness=0.2, where="model")
MIXED = AugmentSettings(mixup=1.0, cutmix=1.0)


@pytest.mark.parametrize(("changes", "plain", "compiled"), [
    (IN_STEP, "mirrored 2", "one device"), (MIXED, "one device", "mirrored 2"),
], ids=["augmented in the step", "mixed"])  # fmt: skip
def test_a_compiled_step_draws_what_others_draw(changes: AugmentSettings, plain: str, compiled: str) -> None:
    """Dropout, noise and augmentation in the network, too: the weights are equal up to rounding."""
    dataset, weights = augment(real_digits(300), changes), []
    for jit, where in (("off", PLACES[plain]()), ("on", PLACES[compiled]())):
        given = kinds.TrainSettings(
            jit=jit, epochs=2, batch_size=60, seed=1, schedule=kinds.ScheduleSettings(),
            optimizer=kinds.SgdSettings(learning_rate=0.05), restore_best=False,
        )  # fmt: skip
        trained = train(built_of({"_target_": f"{__name__}.noisy"}, dataset, where), dataset, where, given)
        assert trained.record.params["jit"] == jit
        weights.append(flat(trained.model.network))
    np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=2e-6)


def test_the_steps_of_a_call_are_chosen_and_change_no_number() -> None:
    trained, weights = usual()
    chosen = trained.record.params["steps_per_call"]
    assert isinstance(chosen, int)
    assert chosen >= 1
    single, same = run(one_device(), dropout=0.3, steps_per_call=1)
    np.testing.assert_array_equal(weights, same)
    assert single.record.params["steps_per_call"] == 1


@pytest.mark.parametrize("is_normalized", [True, False])
def test_a_line_says_why_parts_of_a_batch_do_not_equal_the_whole_one(is_normalized: bool) -> None:
    """BatchNorm normalizes a part by its own statistics: no other way has the memory of a part."""
    dataset, where, reporter = real_digits(120), one_device(), Telling()
    network = CnnPhotoSettings(filters=[4], convolutions=1) if is_normalized else MlpSettings(hidden=[4])
    built = built_of(network, dataset, where)
    given = kinds.SgdSettings(accumulation=2)
    settings = kinds.TrainSettings(epochs=1, batch_size=60, seed=1, schedule=kinds.ScheduleSettings(), optimizer=given)
    train(built, dataset, where, settings, reporter)
    assert any("optimizer.accumulation: BatchNorm" in line for line in reporter.lines) == is_normalized
    told = len(reporter.lines)
    check(built, dataset, mirrored(), replace(settings, optimizer=kinds.SgdSettings()), reporter)
    assert len(reporter.lines) == told
    for layer in normalizing_by_batch(built.network):
        layer.synchronized = False
    check(built, dataset, mirrored(), replace(settings, optimizer=kinds.SgdSettings()), reporter)
    assert any("each of the 2 replicas computes BatchNorm" in line for line in reporter.lines) == is_normalized
