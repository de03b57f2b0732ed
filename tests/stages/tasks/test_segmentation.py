"""Segmentation: the loss and the metrics of NumPy, pixels that do not count, and masks as predictions."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.metrics.known import KNOWN
from stages.metrics.metric import Metric
from stages.metrics.segmentation import COUNTS, Dice, MeanIou, PixelAccuracy
from stages.settings.train import AutoTaskSettings, ClassificationSettings, SegmentationSettings
from stages.tasks.chosen import chosen_task
from stages.tasks.members import with_members
from stages.tasks.segmentation import IGNORED, MaskHead, PixelCrossEntropy, segmentation
from stages.tasks.task import Task
from tests.stages.experiments import scores_by_parts, settings

RANDOM = np.random.default_rng(3)
NAMES = ("ground", "cat", "dog", "never")
COUNT, HEIGHT, WIDTH = 60, 5, 4
MASKS = RANDOM.choice([0, 1, 2, IGNORED], (COUNT, HEIGHT, WIDTH), p=[0.6, 0.2, 0.1, 0.1]).astype(np.uint8)
MASKS[7] = IGNORED
KNOWN_PIXELS = MASKS != IGNORED
CLASSES = np.where(KNOWN_PIXELS, MASKS, 0).astype(np.int64)
OUTPUTS = (RANDOM.normal(size=(*MASKS.shape, 4)) + np.eye(4)[CLASSES] * [1, 1, 1, -3]).astype(np.float32)
WEIGHTS = RANDOM.exponential(size=COUNT)
TARGETS = MASKS.astype(np.int32)
"""Masks as a network's loss receives them."""


def task_of(**given: Any) -> Task:
    return segmentation(NAMES).of_targets(MASKS).for_training(settings(**given), MASKS)


def log_softmax(outputs: np.ndarray) -> np.ndarray:
    wide = outputs.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
def test_the_loss_is_the_mean_over_the_pixels_that_count(smoothing: float, outputs: str) -> None:
    logs = log_softmax(OUTPUTS)
    soft = (1 - smoothing) * np.eye(4)[CLASSES] + smoothing / 4
    of_pixels = np.where(KNOWN_PIXELS, -(soft * logs).sum(axis=-1), 0).sum(axis=(1, 2))
    expected = of_pixels / np.maximum(KNOWN_PIXELS.sum(axis=(1, 2)), 1)
    task = task_of(label_smoothing=smoothing).of_network(outputs)
    given = OUTPUTS if outputs == "logits" else np.exp(logs).astype(np.float32)
    losses = task.loss.of_each(TARGETS, tf.constant(given))
    assert losses.dtype == tf.float32
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[7] == 0
    half = task.loss.of_each(TARGETS, tf.constant(given, tf.float16))
    assert half.dtype == tf.float32, "half precision is widened"


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
def test_pixels_that_do_not_count_change_nothing(outputs: str) -> None:
    """Neither the losses, nor the gradients, nor the counts, to the bit, whatever the network returns there."""
    task = task_of(class_weights="balanced", label_smoothing=0.1).of_network(outputs)
    given = OUTPUTS if outputs == "logits" else np.exp(log_softmax(OUTPUTS)).astype(np.float32)

    def computed(values: tf.Tensor) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            losses = task.loss.of_each(TARGETS, values)
        gradients = tape.gradient(losses, values).numpy()
        assert not gradients[~KNOWN_PIXELS].any()
        return [losses.numpy(), gradients, *(part.numpy() for part in task.head.known(TARGETS, values).values())]

    expected = computed(tf.constant(given))
    for value in (1e30, -1e30, np.inf, np.nan):
        other = np.where(KNOWN_PIXELS[..., None], given, np.array([value, 0, value, value], np.float32))
        for ours, theirs in zip(computed(tf.constant(other)), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_weights_of_classes_are_those_of_pixels_that_occur_more_often() -> None:
    """A class of weight 2 has the loss and the gradients of masks whose pixels of this class occur twice."""
    masks, outputs = MASKS[KNOWN_PIXELS].reshape(1, 1, -1), OUTPUTS[KNOWN_PIXELS].reshape(1, 1, -1, 4)
    times = np.where(masks == 1, 3, np.where(masks == 2, 2, 1)).ravel()
    repeated = np.repeat(masks, times, axis=2), np.repeat(outputs, times, axis=2)
    plain, weighted = (
        segmentation(NAMES).for_training(settings(class_weights=weights), masks) for weights in (None, [1.0, 3, 2, 7])
    )
    losses = [
        float(task.loss.of_each(mask.astype(np.int32), tf.constant(given))[0])
        for task, (mask, given) in ((weighted, (masks, outputs)), (plain, repeated))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    balanced = task_of(class_weights="balanced").loss
    assert isinstance(balanced, PixelCrossEntropy)
    assert balanced.class_weights is not None
    pixels = np.bincount(MASKS[KNOWN_PIXELS], minlength=4)
    products = np.array(balanced.class_weights) * pixels
    np.testing.assert_allclose(products[:3], pixels.sum() / 3)
    with pytest.raises(UserError, match="class_weights has 2 numbers, but there are 4 classes"):
        task_of(class_weights=[1.0, 2.0])


def counts_of(masks: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Return the counts of each example, straightforwardly."""
    is_true = [np.equal(masks, place) for place in range(4)]
    is_predicted = [(predicted == place) & (masks != IGNORED) for place in range(4)]
    parts = (is_true, is_predicted, [one & other for one, other in zip(is_true, is_predicted, strict=True)])
    return {name: np.sum(part, axis=(2, 3)).T for name, part in zip(COUNTS, parts, strict=True)}


def scores_of(counts: dict[str, np.ndarray], weights: np.ndarray) -> dict[str, float]:
    true, predicted, both = (weights @ counts[name] for name in COUNTS)
    is_there = true + predicted > 0
    true, predicted, both = true[is_there], predicted[is_there], both[is_there]
    return {
        "mean_iou": float(np.mean(both / (true + predicted - both))),
        "dice": float(np.mean(2 * both / (true + predicted))),
        "pixel_accuracy": float(both.sum() / true.sum()),
    }


def test_metrics_are_those_of_numpy_however_the_examples_are_divided() -> None:
    task = task_of()
    counts = counts_of(MASKS, OUTPUTS.argmax(axis=-1))
    rows = task.head.rows(TARGETS, tf.constant(OUTPUTS)).numpy()
    for name, column in task.head.columns(rows).items():
        np.testing.assert_array_equal(column, counts[name])
    expected = scores_of(counts, WEIGHTS)
    assert scores_by_parts(task, TARGETS, tf.constant(OUTPUTS), WEIGHTS, 5) == pytest.approx(expected, rel=1e-6)
    columns = {**task.head.columns(rows), "weight": WEIGHTS}
    values = task.view.values(task.comparable, columns, NAMES, 0.95, 15)
    assert values == pytest.approx(expected, rel=1e-12)
    assert task.all_sums == dict.fromkeys(COUNTS, (4,))
    assert {*task.measured} <= KNOWN.keys()
    keras_metric = keras.metrics.MeanIoU(4, ignore_class=IGNORED)  # the mean of the classes that occur, too
    keras_metric.update_state(MASKS, OUTPUTS.argmax(axis=-1))
    assert float(keras_metric.result()) == pytest.approx(scores_of(counts, np.ones(COUNT))["mean_iou"], rel=1e-6)


@pytest.mark.parametrize("metric", [MeanIou(), Dice(), PixelAccuracy()], ids=lambda metric: metric.name)
def test_the_influence_of_an_example_is_the_derivative_by_its_weight(metric: Metric) -> None:
    counts = counts_of(MASKS, OUTPUTS.argmax(axis=-1))
    value, influences = metric.estimate(counts, np.ones(COUNT))
    for example in range(0, COUNT, 7):
        change = 1e-5 * (np.arange(COUNT) == example)
        above, below = (scores_of(counts, 1 + sign * change)[metric.name] for sign in (1, -1))
        assert influences[example] == pytest.approx(COUNT * (above - below) / 2e-5, abs=1e-5)
    ends = metric.interval(counts, 0.95)
    assert not isinstance(ends, str)
    assert ends[0] < value < ends[1]
    assert metric.by_example(counts).mean() == pytest.approx(value)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """In 400 draws of 60 masks with areas of very different sizes: 90% of 90% intervals, up to 4 standard errors."""
    random = np.random.default_rng(1)
    sizes = np.rint(random.gamma(2.0, 60.0, (20_000, 3)))
    hits = np.rint(sizes * random.beta(4, 1.5, (20_000, 3)))
    missed = sizes - hits
    whole = {"pixels": sizes, "predicted_pixels": hits + np.roll(missed, 1, axis=1), "intersection": hits}
    for metric in (MeanIou(), Dice(), PixelAccuracy()):
        truth = metric.estimate(whole, np.ones(20_000))[0]
        held = []
        for _ in range(400):
            rows = random.integers(0, 20_000, 60)
            ends = metric.interval({name: column[rows] for name, column in whole.items()}, 0.9)
            assert not isinstance(ends, str)
            held.append(ends[0] <= truth <= ends[1])
        assert 0.9 - 4 * np.sqrt(0.09 / 400) < np.mean(held) < 0.97, metric.name


def test_a_rare_class_leaves_the_mean_without_an_interval() -> None:
    counts = counts_of(MASKS, OUTPUTS.argmax(axis=-1))
    rare = {name: column * ([1, 1, 1, 0] if name != "pixels" else 1) for name, column in counts.items()}
    rare["pixels"] = np.where(np.arange(COUNT)[:, None] < 3, rare["pixels"] + [0, 0, 0, 9], rare["pixels"])
    assert MeanIou().interval(rare, 0.95) == "a class occurs in fewer than 20 test examples"
    assert MeanIou().by_example(rare).shape == (1,)
    assert not isinstance(PixelAccuracy().interval(rare, 0.95), str)
    nothing = {name: np.zeros((9, 4), np.int32) for name in COUNTS}
    assert all(np.isnan(metric.value(nothing)) for metric in (MeanIou(), Dice(), PixelAccuracy()))


def test_predictions_are_probabilities_and_masks() -> None:
    task = task_of()
    answers = task.head.predictions(tf.constant(OUTPUTS))
    np.testing.assert_allclose(answers, np.exp(log_softmax(OUTPUTS)), rtol=1e-4, atol=1e-7)
    mask = task.head.explained(answers, tf.constant(NAMES))["mask"]
    assert mask.dtype == tf.uint8
    np.testing.assert_array_equal(mask, OUTPUTS.argmax(axis=-1))
    inputs = keras.Input((HEIGHT, WIDTH, 4))
    layer = keras.Model(inputs, task.head.as_layers(inputs))
    ours = answers.numpy()
    assert task.head.differ(ours, layer(OUTPUTS).numpy(), 1e-4) == (pytest.approx(0, abs=1e-6), 1.0)
    other = ours.copy()
    other[0] = np.roll(ours[0], 1, axis=-1)
    assert task.head.differ(ours, other, 1e-4)[1] == pytest.approx(1 - 1 / COUNT)
    broken = np.where(np.arange(COUNT)[:, None, None, None] == 3, np.nan, OUTPUTS).astype(np.float32)
    assert [*np.flatnonzero(np.isnan(task.head.rows(TARGETS, tf.constant(broken))).any(axis=1))] == [3]


def test_a_loss_of_keras_receives_zeros_for_pixels_that_do_not_count() -> None:
    wanted, given = task_of().head.for_keras_loss(tf.constant(TARGETS), tf.constant(OUTPUTS), as_logits=False)
    assert wanted.shape == given.shape == OUTPUTS.shape
    for part in (wanted, given):
        np.testing.assert_allclose(tf.reduce_sum(part, axis=-1), KNOWN_PIXELS, rtol=1e-6)


def dice_loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    both, either = (tf.reduce_sum(part, axis=[1, 2]) for part in (targets * outputs, targets + outputs))
    return 1 - tf.reduce_mean(2 * both / (either + 1e-6), axis=-1)


def of_each_pixel(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return keras.losses.categorical_crossentropy(targets, outputs)


class LargestMistake(Metric):
    """The share of the predicted pixels of the last class that are wrong."""

    name = "largest_mistake"
    span = 1.0

    def of_each(self, columns: Any, xp: Any) -> Any:
        return {"predicted": columns["predicted_pixels"][:, -1], "both": columns["intersection"][:, -1]}

    def value(self, sums: Any) -> float:
        return float(1 - sums["both"] / sums["predicted"])


def test_a_loss_and_a_metric_of_the_user() -> None:
    def of(**given: Any) -> Task:
        return chosen_task(segmentation(NAMES), SegmentationSettings(**given), MASKS)

    task = of(loss={"_target_": f"{__name__}.dice_loss"}, metrics=[{"_target_": f"{__name__}.LargestMistake"}])
    assert task.loss.of_each(tf.constant(TARGETS), tf.constant(OUTPUTS)).shape == (COUNT,)
    assert task.measured[-1] == "largest_mistake"
    with pytest.raises(UserError, match=r"returns shape \(16, 5, 4\) .* 16 examples of shape \(5, 4, 4\)"):
        of(loss={"_target_": f"{__name__}.of_each_pixel"})
    with pytest.raises(UserError, match="is a metric of Keras, which would also count pixels that do not count"):
        of(metrics=[{"_target_": "keras.metrics.OneHotMeanIoU", "num_classes": 4}])
    with pytest.raises(UserError, match=r"task=classification does not match the target .* needs task=segmentation"):
        chosen_task(segmentation(NAMES), ClassificationSettings(), MASKS)
    with pytest.raises(UserError, match="requires 2 classes, but the data has 2 classes, and needs task=segmentation"):
        chosen_task(segmentation(NAMES[:2]), AutoTaskSettings(single_logit=True), MASKS % 2)


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
def test_several_members_predict_the_mean_of_their_probabilities(outputs: str) -> None:
    task = task_of().of_network(outputs)
    given = tf.constant(np.stack([OUTPUTS, OUTPUTS[::-1], 2 * OUTPUTS], axis=1))
    given = tf.nn.softmax(given) if outputs == "probabilities" else given
    head = with_members(task, 3).head
    means = np.mean([task.head.predictions(given[:, member]) for member in range(3)], axis=0)
    np.testing.assert_allclose(head.predictions(given), means, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(head.derived(head.predictions(given))["mask"], means.argmax(axis=-1))
    counts = counts_of(MASKS, means.argmax(axis=-1))
    for name, column in head.columns(head.rows(TARGETS, given).numpy()).items():
        np.testing.assert_array_equal(column, counts[name])


WRONG: dict[str, tuple[tuple[str, ...], np.ndarray, str]] = {
    "a value": (("a", "b"), MASKS, r"masks have the value 2\. Expected classes from 0 to 1, or 255"),
    "a shape": (NAMES, MASKS[..., None], r"masks are uint8 of shape \(60, 5, 4, 1\)"),
    "a dtype": (NAMES, MASKS.astype(np.float32), "masks are float32"),
    "a name": (("a", "a"), MASKS, r"the 2 class name\(s\)"),
    "one class": (("a",), MASKS, r"the 1 class name\(s\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_masks_that_do_not_fit(name: str) -> None:
    names, masks, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        segmentation(names).targets.check("photos: its train", masks)


def test_targets_describe_themselves() -> None:
    targets = segmentation(NAMES).targets
    targets.check("photos: its train", MASKS)
    expected = [len([mask for mask in MASKS if place in mask]) for place in range(4)]
    np.testing.assert_array_equal(targets.support(MASKS), expected)
    assert targets.title(np.array([[0, 2], [2, IGNORED]]), NAMES) == "ground, dog"
    head = task_of().head
    assert isinstance(head, MaskHead)
    assert head.shape == (HEIGHT, WIDTH, 4)
    with pytest.raises(UserError, match=r"model\.outputs=probabilities, but the network's outputs"):
        head.of_network("probabilities").check(OUTPUTS)
