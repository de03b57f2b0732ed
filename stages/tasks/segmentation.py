"""Segmentation: a class for each pixel of an image, by logits or probabilities [b, H, W, classes]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column, blocks_of
from stages.errors import UserError
from stages.metrics.estimates import Columns
from stages.metrics.metric import Metric
from stages.metrics.report import Measured, Section, blank_where_nan
from stages.metrics.segmentation import COUNTS, Dice, MeanIou, OfAreas, PixelAccuracy
from stages.plots.charts import plot_scores
from stages.plots.galleries import overlaid, plot_batch
from stages.tasks.classification import (
    NEAR_TIE,
    ProbabilityHead,
    WeightedLoss,
    check_probabilities,
    logs_of_probabilities,
)
from stages.tasks.parts import Predict, Targets, Trivial, View
from stages.tasks.task import Task

if TYPE_CHECKING:
    from pathlib import Path

    from stages.data.split import Split
    from stages.results import Dataset
    from stages.settings.results import EvaluateSettings
    from stages.settings.train import TrainSettings

PER_ROW = 6
"""Images in a row of the worst examples: two examples, each with its mask and its prediction."""

IGNORED = 255
"""The value of pixels that do not count in losses and metrics."""


@dataclass(frozen=True)
class MaskTargets(Targets):
    """A class for each pixel, whole numbers [N, H, W] from 0, or `IGNORED`."""

    plural: ClassVar[str] = "classes"
    singular: ClassVar[str] = "class"

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def ignored_pixel(self) -> int:
        """See `Targets`."""
        return IGNORED

    def task(self) -> Task:
        """See `Targets`."""
        return segmentation(self.names)

    def check(self, where: str, targets: Column) -> None:
        """See `Targets`; the pixels of masks that are read at each use are not checked.

        There are from 2 to 255 class names, all of them different texts.
        """
        classes = len(self.names)
        is_text = all(isinstance(name, str) for name in self.names)
        if not 2 <= classes <= IGNORED or len(set(self.names)) < classes or not is_text:
            problem = f"{where.partition(':')[0]}: the {classes} class name(s) are {self.names[:9]}"
            raise UserError(problem, f"from 2 to {IGNORED} names, all of them different texts")
        if len(targets.shape) != 3 or np.dtype(targets.dtype).kind not in "iu":
            problem = f"{where} masks are {targets.dtype} of shape {tuple(targets.shape)}"
            raise UserError(problem, "whole numbers of shape [N, H, W]")
        if isinstance(targets, np.ndarray):
            wrong = targets[((targets < 0) | (targets >= classes)) & (targets != IGNORED)]
            if wrong.size:
                expected = f"classes from 0 to {classes - 1}, or {IGNORED} for a pixel that does not count"
                raise UserError(f"{where} masks have the value {wrong[0]}", expected)

    def soften(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the part of each class in each pixel, float32 [b, H, W, classes]; 0 if the pixel does not count."""
        return tf.one_hot(tf.cast(targets, tf.int32), len(self.names))

    def blank(self) -> tf.Tensor:
        """See `Targets`: a mask of one pixel, which stands for a mask of any size."""
        return tf.zeros((1, 1, 1), tf.int32)

    def support(self, targets: Column) -> np.ndarray:
        """Return how many masks have pixels of each class, int64 [classes]."""
        return sum(
            ((self._pixels(block) > 0).sum(axis=0) for block in blocks_of(targets)), np.zeros(len(self.names), np.int64)
        )

    def groups(self, targets: Column) -> dict[str, np.ndarray]:
        """See `Targets`: the masks that have pixels of each class."""
        has_class = np.concatenate([self._pixels(block) > 0 for block in blocks_of(targets)])
        return {name: np.flatnonzero(has_class[:, place]) for place, name in enumerate(self.names)}

    def pixels(self, targets: Column, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the number of pixels of each class, float64 [classes], times the weights of their examples."""
        of_each = np.concatenate([self._pixels(block) for block in blocks_of(targets)])
        return np.asarray(of_each.sum(axis=0) if weights is None else weights @ of_each, np.float64)

    def _pixels(self, masks: np.ndarray) -> np.ndarray:
        """Return the number of pixels of each class in each mask, int64 [n, classes]."""
        size = IGNORED + 1
        counts = [np.bincount(mask.ravel(), minlength=size)[: len(self.names)] for mask in masks]
        return np.array(counts, np.int64).reshape(-1, len(self.names))

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Return the classes that the mask has."""
        return ", ".join(names[place] for place in np.unique(target) if place < len(names)) or "no pixel counts"

    def drawn_on(self, images: np.ndarray, targets: np.ndarray, pixel_range: tuple[float, float]) -> np.ndarray:
        """See `Targets`: half covered by the colors of the classes, float32 [n, H, W, 3]."""
        low, high = pixel_range
        return overlaid(images, targets, pixel_range, IGNORED).astype(np.float32) / 255 * (high - low) + low


@dataclass(frozen=True)
class MaskHead(ProbabilityHead):
    """One output per class and pixel."""

    targets: MaskTargets

    size: tuple[int, int] = (1, 1)
    """Height and width of the masks."""

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Head`."""
        return (*self.size, self.units)

    def of_targets(self, targets: Column) -> Self:
        """See `Head`: for masks of one size."""
        height, width = targets.shape[1:]
        return replace(self, size=(int(height), int(width)))

    def check(self, outputs: np.ndarray) -> None:
        """See `Head`."""
        check_probabilities(outputs, self.given)

    def squashed(self, logits: tf.Tensor) -> tf.Tensor:
        """See `ProbabilityHead`."""
        return tf.nn.softmax(logits)

    def merged(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        if self.given == "probabilities":
            return super().merged(outputs)
        return tf.reduce_logsumexp(tf.nn.log_softmax(outputs), axis=1) - np.log(outputs.shape[1])

    def for_keras_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Head`: [b, H, W, classes] each. Targets and probabilities of pixels that do not count are 0."""
        wanted = tf.cast(self.targets.soften(targets), outputs.dtype)
        if as_logits:
            return wanted, outputs
        given = outputs if self.given == "probabilities" else self.squashed(outputs)
        return wanted, tf.where((targets != IGNORED)[..., tf.newaxis], given, 0)

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return probabilities, float32 [b, H, W, classes], which add up to 1 in each pixel."""
        return tf.cast(self.squashed(outputs) if self.given == "logits" else outputs, tf.float32)

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`."""
        if self.given == "probabilities":
            return outputs
        return keras.layers.Softmax(dtype=outputs.dtype, name=self.answer)(outputs)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the counts of pixels of each example, float32 [b, classes] each; see `stages.metrics.segmentation`."""
        targets = tf.broadcast_to(tf.cast(targets, tf.int32), tf.shape(outputs)[:-1])  # a blank one has one pixel
        counts = targets != IGNORED
        classes = tf.where(counts, targets, 0)
        predicted = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        examples = tf.shape(outputs)[0]
        first = tf.range(examples)[:, tf.newaxis, tf.newaxis] * self.units

        def by_class(places: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
            sums = tf.math.unsorted_segment_sum(tf.cast(counted, tf.float32), first + places, examples * self.units)
            return tf.reshape(sums, [-1, self.units])

        counted = (by_class(classes, counts), by_class(predicted, counts))
        return dict(zip(COUNTS, (*counted, by_class(classes, counts & (classes == predicted))), strict=True))

    @property
    def width(self) -> int:
        """See `Head`."""
        return len(COUNTS) * self.units

    def rows(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`: the counts of pixels; nan for an example with an output that is not finite."""
        known = self.known(targets, outputs)
        is_finite = tf.reduce_all(tf.math.is_finite(outputs), axis=[1, 2, 3])[:, tf.newaxis]
        return tf.where(is_finite, tf.concat([known[name] for name in COUNTS], axis=1), np.nan)

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`."""
        parts = np.split(np.rint(np.nan_to_num(rows)).astype(np.int32), len(COUNTS), axis=1)
        return dict(zip(COUNTS, parts, strict=True))

    def derived(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the likeliest class of each pixel, uint8 [b, H, W]."""
        return {"mask": tf.cast(tf.argmax(predictions, axis=-1, output_type=tf.int32), tf.uint8)}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Head`: the fraction of pixels that get our class, or another that we find as likely, up to `allowed`."""
        given = np.take_along_axis(ours, theirs.argmax(axis=-1)[..., np.newaxis], axis=-1)[..., 0]
        agreement = float(np.mean(ours.max(axis=-1) - given <= min(allowed, NEAR_TIE)))
        return float(np.max(np.abs(theirs - ours))), agreement


@dataclass(frozen=True)
class PixelCrossEntropy(WeightedLoss):
    """The cross-entropy of each example: the mean over its pixels that count; 0 if it has no such pixel.

    `class_weights` are relative to a mean of 1 over the pixels of the training split.
    """

    head: MaskHead

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`. Outputs of pixels that do not count have no effect, whatever their values."""
        targets = tf.cast(targets, tf.int32)
        counts = targets != IGNORED
        dtype = tf.float64 if outputs.dtype == tf.float64 else tf.float32
        # A gradient of nan times 0 would be nan, so the outputs are replaced, and not only their losses.
        known = tf.where(counts[..., tf.newaxis], tf.cast(outputs, dtype), tf.constant(1 / self.head.units, dtype))
        classes = tf.where(counts, targets, 0)
        logs = None
        if self.head.given == "probabilities":
            logs = logs_of_probabilities(known)
            values = -tf.gather(logs, classes, batch_dims=3)
        else:
            values = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, known)
        if self.label_smoothing:
            logs = tf.nn.log_softmax(known) if logs is None else logs
            values = (1.0 - self.label_smoothing) * values - self.label_smoothing * tf.reduce_mean(logs, axis=-1)
        if self.class_weights is not None:
            values *= tf.gather(tf.constant(self.class_weights, dtype), classes)
        pixels = tf.cast(counts, dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(values * pixels, axis=[1, 2]), tf.reduce_sum(pixels, axis=[1, 2]))

    def for_training(self, settings: TrainSettings, targets: Column) -> Self:
        """See `Loss`."""
        loss = super().for_training(settings, targets)
        if loss.class_weights is None:
            return loss
        pixels, weights = self.head.targets.pixels(targets), np.array(loss.class_weights)
        mean = float(weights @ pixels / max(pixels.sum(), 1))
        return replace(loss, class_weights=tuple((weights / (mean or 1.0)).tolist()))

    def balanced(self, targets: Column) -> list[float]:
        """See `WeightedLoss`."""
        pixels = self.head.targets.pixels(targets)
        return [float(pixels.sum() / (len(pixels) * max(count, 1))) for count in pixels]


@dataclass(frozen=True)
class MajorityMask(Trivial):
    """The class that most pixels of the training split have, for every pixel."""

    def rows(self, columns: Columns) -> np.ndarray:
        """See `Trivial`. row: The share of each class."""
        pixels, majority = columns["pixels"], int(self.row.argmax())
        predicted, intersection = np.zeros_like(pixels), np.zeros_like(pixels)
        predicted[:, majority], intersection[:, majority] = pixels.sum(axis=1), pixels[:, majority]
        return np.concatenate([pixels, predicted, intersection], axis=1).astype(np.float32)


@dataclass(frozen=True)
class MaskView(View):
    """Predicted masks as people see them: by their counts of pixels."""

    column: ClassVar[str] = COUNTS[0]
    least: ClassVar[int] = 30

    def target_columns(self, split: Split) -> dict[str, np.ndarray]:
        """See `View`: none, as the counts of pixels, which include those of the targets, are predictions."""
        return {}

    def report(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> Measured:
        """See `View`."""
        measured = Measured.of(metrics, columns, confidence)
        header = ("class", "iou", "low", "high", "dice", "pixels", "predicted pixels")
        rows = []
        for place, name in enumerate(names):
            counts = {key: int(columns[key][:, place].sum(dtype=np.int64)) for key in COUNTS}
            of_class = _of_class(columns, place)
            ends = MeanIou().interval(of_class, confidence)
            cells = [_of_sums(MeanIou(), of_class), *((np.nan, np.nan) if isinstance(ends, str) else ends)]
            cells.append(_of_sums(Dice(), of_class))
            rows.append((name, *blank_where_nan(np.array(cells)), counts["pixels"], counts["predicted_pixels"]))
        note = (
            "iou is blank for a class that does not occur. low and high are the ends of its "
            f"{100 * confidence:g}% confidence interval, if there is one."
        )
        section = Section("by_class", "IoU of each class", note, [header, *rows])
        return Measured(values=measured.values, intervals=measured.intervals, notes=measured.notes, sections=[section])

    def values(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> dict[str, float]:
        """See `View`."""
        return {**Measured.of(metrics, columns, confidence).values}

    def draw(
        self, columns: Columns, dataset: Dataset, settings: EvaluateSettings, folder: Path, predict: Predict
    ) -> list[Path]:
        """See `View`: the IoU of each class, and the examples with the lowest IoU, with their masks."""
        place, names = folder / "plots", dataset.task.names
        of_classes = [_of_class(columns, number) for number in range(len(names))]
        ends = [MeanIou().interval(one, settings.confidence) for one in of_classes]
        lows, highs = np.array([(np.nan, np.nan) if isinstance(one, str) else one for one in ends]).T
        values = np.array([_of_sums(MeanIou(), one) for one in of_classes])
        drawn = [plot_scores(names, values, lows, highs, "IoU on the test split", place / "iou.png")]
        path = place / "worst.png"
        path.unlink(missing_ok=True)
        images = dataset.images
        ious = MeanIou().by_class(columns)
        of_each = np.nanmean(np.where(np.isnan(ious).all(axis=1, keepdims=True), 1.0, ious), axis=1)
        worst = np.argsort(of_each, kind="stable")[: settings.mistakes]
        if images is not None and len(worst):
            rows = np.sort(worst)  # in the order in which they are read fastest
            order, test = np.argsort(of_each[rows], kind="stable"), dataset.test
            pixels, masks = (np.asarray(column[rows])[order] for column in (test.images, test.targets))
            few = [rows[start : start + PER_ROW] for start in range(0, len(rows), PER_ROW)]  # many may not fit
            answers = np.concatenate([predict(part).argmax(axis=-1) for part in few])[order]
            shown = (np.full_like(masks, IGNORED), masks, answers)
            parts = [overlaid(pixels, part, images.ends, IGNORED) for part in shown]
            captions = [text for row in rows[order] for text in (f"IoU {of_each[row]:.2f}", "mask", "predicted")]
            title = f"The {len(rows)} images with the lowest IoU: the image, its mask and the predicted mask"
            in_threes = np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])
            drawn.append(plot_batch(in_threes, captions, (0.0, 255.0), title, path, PER_ROW))
        return drawn

    def trivial(self, task: Task, train: Split) -> Trivial:
        """Return the class that most pixels have."""
        assert isinstance(task.targets, MaskTargets)
        pixels = task.targets.pixels(train.targets, train.weights)
        shares = pixels / max(pixels.sum(), 1)
        majority = int(shares.argmax())
        share = f"{100 * shares[majority]:.1f}% of the pixels of"
        model = f'the majority-class baseline (always "{task.names[majority]}", {share}'
        return MajorityMask(model, shares, task.comparable)

    def not_beaten(self, names: Sequence[str], ours: Columns, trivial: Columns) -> list[str]:
        """Return the classes whose IoU is not higher."""
        pairs = [
            [_of_sums(MeanIou(), _of_class(each, place)) for each in (ours, trivial)] for place in range(len(names))
        ]
        return [name for name, (our, their) in zip(names, pairs, strict=True) if our <= their]


def _of_class(columns: Columns, place: int) -> Columns:
    """Return the columns of one of the classes."""
    return {name: column[:, [place]] if name in COUNTS else column for name, column in columns.items()}


def _of_sums(metric: OfAreas, columns: Columns) -> float:
    """Return the metric of columns, with the weights of the examples."""
    weights = columns.get("weight", np.ones(len(columns["pixels"])))
    return metric.value({name: weights @ columns[name] for name in COUNTS})


def segmentation(names: Sequence[str]) -> Task:
    """Return the task of predicting the class of each pixel. names: Of the classes."""
    head = MaskHead(MaskTargets(tuple(names)))
    metrics = (MeanIou(), Dice(), PixelAccuracy())
    shown = (PixelAccuracy.name,)
    return Task(head.targets, PixelCrossEntropy(head), metrics, head, MaskView(shown), "Segmentation", "segmentation")
