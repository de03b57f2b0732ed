"""Blending: one share of the seasonal naive forecast, fitted on the validation split, that a forecast contains."""

from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from stages.data.columns import blocks_of
from stages.features.kinds import HISTORY
from stages.networks.keras_internals import all_layers
from stages.networks.series import BLEND
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy, Trained
from stages.tasks.forecast import ForecastTargets
from stages.tasks.members import MemberHead
from stages.training.calibration import LEAST_EXAMPLES, outputs_of

SHARES = np.linspace(0, 1, 101)
"""The shares of the seasonal naive forecast that are compared."""


def blended(trained: Trained, dataset: Dataset, strategy: Strategy, reporter: Reporter) -> Trained:
    """Return the result of a training with the share of the seasonal naive forecast that has the lowest loss.

    The loss is that of the task on the validation split. The share is in the weights of the layer BLEND, and so in all
    exports. `train/naive_share` is recorded, and the loss of validation before and after. Nothing changes for other
    tasks, for quantiles, for networks without this layer, and with fewer than LEAST_EXAMPLES validation windows.
    """
    model, val, targets = trained.model, dataset.val, trained.model.task.targets
    layer: Any = next((layer for layer in all_layers(model.network) if layer.name == BLEND), None)
    if layer is None or not isinstance(targets, ForecastTargets):
        return trained
    if len(val) < LEAST_EXAMPLES:
        reporter.log(f"no share of the naive forecast is fitted, because validation has only {len(val)} windows")
        return trained
    loss = getattr(model.task.loss, "one", model.task.loss)  # of a single member
    outputs = _merged(model, outputs_of(model, dataset, strategy))
    truth = tf.constant(np.asarray(val.targets[:]))
    forecasts = np.concatenate([targets.forecasts(block) for block in blocks_of(val.features[HISTORY])])
    naive = targets.standardized(tf.constant(forecasts), outputs.dtype)
    losses = [float(tf.reduce_mean(loss.of_each(truth, outputs + share * (naive - outputs)))) for share in SHARES]
    share = float(SHARES[int(np.argmin(losses))])
    layer.kernel.assign((1 - share) * layer.kernel + share * np.array([[0], [1]]))
    metrics = {"train/naive_share": share, "val/unblended_loss": losses[0], "val/blended_loss": min(losses)}
    reporter.log(
        f"blended: the share of the seasonal naive forecast is {share:.2f}, "
        f"loss of validation {losses[0]:.4f} to {min(losses):.4f}"
    )
    return replace(trained, record=replace(trained.record, metrics={**trained.record.metrics, **metrics}))


def _merged(model: Model, outputs: np.ndarray) -> tf.Tensor:
    """Return the outputs for each target, [n, targets]: the mean over members, if there are any."""
    head = model.task.head
    return head.one.merged(tf.constant(outputs)) if isinstance(head, MemberHead) else tf.constant(outputs)
