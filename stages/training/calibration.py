"""Calibration: one temperature that makes the probabilities of a trained network neither too sure nor too unsure.

Source: Guo, Pleiss, Sun and Weinberger 2017 (arXiv:1706.04599), section 4.2.
"""

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.evaluation.eval_step import BATCH, Scorer
from stages.metrics.classes import LogLoss
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy, Trained
from stages.tasks.class_report import Predicted, calibration_error
from stages.tasks.parts import Head

LEAST_EXAMPLES = 100
"""Minimum number of validation examples. From fewer, one number is not estimated well enough to change anything."""

BINS = 15
"""Number of bins of the calibration error (ECE)."""

RANGE = (0.25, 4.0)
"""Lowest and highest temperature."""

LEAST_OF_GROUPS = 1.0
"""Lowest temperature if examples have groups, such as blocks of time: a few easy ones would make the model too sure."""

PRECISION = 1e-3
"""Largest relative error of the temperature."""


@dataclass(frozen=True)
class OutputsHead(Head):
    """A head whose rows are the outputs of the network, float32 [b, width]."""

    one: Head
    """The head of the task, for the metrics."""

    answer = "outputs"

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Head`."""
        return self.one.shape

    @property
    def width(self) -> int:
        """See `Head`."""
        return int(np.prod(self.one.shape))

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return self.one.predictions(outputs)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`."""
        return self.one.known(targets, outputs)

    def rows(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return tf.cast(tf.reshape(outputs, [-1, self.width]), tf.float32)


def calibrated(trained: Trained, dataset: Dataset, strategy: Strategy, reporter: Reporter) -> Trained:
    """Return the result of a training with the temperature that has the lowest log loss on the validation split.

    The weights of the last layer are divided by it, so the model and all its exports predict calibrated probabilities.
    The likeliest class of an example stays the same for a network without members. `train/temperature` is recorded, and
    the log loss of validation before and after. Nothing changes for tasks without probabilities, with fewer than
    LEAST_EXAMPLES validation examples, or if the last layer is not linear. If examples have groups, the temperature is
    at least 1, so that probabilities become less sure or stay as they are.
    """
    model, val = trained.model, dataset.val
    if model.task.head.answer != "probabilities" or len(model.task.head.shape) > MOST_AXES:
        return trained
    layer = _last_layer(model)
    if layer is None or len(val) < LEAST_EXAMPLES:
        why = "the last layer is not linear" if layer is None else f"validation has only {len(val)} {dataset.unit}"
        reporter.log(f"probabilities are not calibrated, because {why}")
        return trained
    outputs = outputs_of(model, dataset, strategy)
    targets = tf.constant(np.asarray(val.targets[:]))
    head, weights = model.task.head, val.weights

    def columns(temperature: float) -> dict[str, np.ndarray]:
        known = head.known(targets, tf.constant(outputs / np.float32(temperature)))
        return {name: np.asarray(column) for name, column in known.items()}

    def log_loss(temperature: float) -> float:
        return float(np.average(LogLoss().values(columns(temperature), np), weights=weights))

    temperature = _lowest(log_loss, RANGE[0] if val.groups is None else LEAST_OF_GROUPS)
    before, after = log_loss(1.0), log_loss(temperature)
    if after >= before:
        temperature, after = 1.0, before
    for variable in layer.weights:  # also of a frozen layer
        variable.assign(variable / temperature)
    metrics = {"train/temperature": temperature, "val/log_loss": before, "val/calibrated_log_loss": after}
    if "label" in (known := columns(1.0)):
        errors = (calibration_error(Predicted.of(part), BINS) for part in (known, columns(temperature)))
        metrics |= dict(zip(("val/ece", "val/calibrated_ece"), errors, strict=True))
    reporter.log(f"calibrated: temperature {temperature:.3f}, log loss of validation {before:.4f} to {after:.4f}")
    record = replace(trained.record, metrics={**trained.record.metrics, **metrics})
    return replace(trained, record=record)


MOST_AXES = 2
"""Members and classes: outputs of maps, [H, W, classes], are not calibrated."""


def _last_layer(model: Model) -> keras.layers.Layer | None:
    """Return the layer that computes the outputs, if it is linear and they are logits."""
    layers = getattr(model.network.core, "layers", None)
    given = getattr(getattr(model.task.head, "one", model.task.head), "given", "logits")
    last: Any = layers[-1] if layers else None
    is_linear = isinstance(last, keras.layers.Dense | keras.layers.EinsumDense)
    return last if is_linear and given == "logits" and last.activation is keras.activations.linear else None


def outputs_of(model: Model, dataset: Dataset, strategy: Strategy) -> np.ndarray:
    """Return the outputs of the network for the validation split, float32 [n, ...]."""
    head = OutputsHead(model.task.targets, model.task.head)
    scorer = Scorer(strategy, replace(model, task=replace(model.task, head=head)))
    found = scorer.score(dataset.val, min(BATCH, scorer.most), predicts=True).predictions
    assert found is not None
    return found.reshape(-1, *head.shape)


def _lowest(log_loss: Any, least: float) -> float:
    """Return the temperature from `least` on with the lowest log loss, by golden-section search of its logarithm."""
    low, high = float(np.log(least)), float(np.log(RANGE[1]))
    ratio = (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    of_left, of_right = log_loss(np.exp(left)), log_loss(np.exp(right))
    while high - low > PRECISION:
        if of_left < of_right:
            high, right, of_right = right, left, of_left
            left = high - ratio * (high - low)
            of_left = log_loss(np.exp(left))
        else:
            low, left, of_left = left, right, of_right
            right = low + ratio * (high - low)
            of_right = log_loss(np.exp(right))
    return float(np.exp((low + high) / 2))
