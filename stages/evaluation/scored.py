"""Predictions as slices and importance take them: of any task, by example.

Of a task whose columns in `predictions.parquet` tell its first metric, they are these columns. Of any other they are
what each example adds to the sums of its metrics, [n, ...] by their names, and `examples`, its weight.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from stages.data.examples import network_dtype, network_input
from stages.data.split import Split
from stages.evaluation import estimates
from stages.evaluation.estimates import Columns
from stages.networks.complexity import scoring_batch
from stages.reporter import safe_place
from stages.results import Dataset, Model
from stages.tasks.task import Task

ROWS = 10_000
"""Test examples, evenly spread, at most, where each has to be left out of the sums once."""

EXAMPLES = "examples"


def has_known_columns(task: Task) -> bool:
    """Returns whether predictions have the columns of the project's task that `task` extends."""
    name = "prediction" if task.kind == "regression" else "probabilities"
    column = task.columns(np.zeros((1, task.width), np.float32)).get(name)
    return task.kind != "auto" and column is not None and column.shape[1:] == (len(task.names),)


def is_told_by_columns(task: Task) -> bool:
    """Returns whether the columns of predictions tell the metric by which models are compared."""
    needed = estimates.COLUMNS.get(task.primary)
    return has_known_columns(task) and needed is not None and {*needed} <= {*task.column_names}


def by_example(task: Task, predicted: Columns) -> np.ndarray:
    """Returns a value of each example, [n], whose mean is the first metric; see `estimates.by_example`.

    By sums these are the jackknife's pseudo-values (Tukey, Annals of Mathematical Statistics 29, 1958).
    """
    if EXAMPLES not in predicted:
        return estimates.by_example(task.primary, predicted)
    whole = {name: part.sum(axis=0) for name, part in predicted.items()}
    count = len(predicted[EXAMPLES])
    with np.errstate(all="ignore"):
        value = task.all_scores(whole)[task.primary]
        without = [
            task.all_scores({name: whole[name] - part[row] for name, part in predicted.items()})[task.primary]
            for row in range(count if count > 1 else 0)
        ]
    return np.nan_to_num(count * value - (count - 1) * np.array(without)) if without else np.array([value])


def sums_of_each(task: Task, split: Split, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what each example adds to the sums of the metrics. outputs: of a network for all examples of `split`."""
    weights = np.ones(len(split)) if split.weights is None else split.weights
    shapes = {name: tf.TensorSpec(shape, tf.float64) for name, shape in task.all_sums.items()}

    def add(row: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        sums = task.add_all(*(part[tf.newaxis] for part in row))
        return {name: tf.cast(value, tf.float64) for name, value in sums.items()}

    rows = tuple(tf.constant(part) for part in (split.targets, outputs, weights))
    found = tf.function(lambda rows: tf.map_fn(add, rows, fn_output_signature=shapes), autograph=False)(rows)
    safe_place()
    return {**{name: value.numpy() for name, value in found.items()}, EXAMPLES: weights}


def scoring(model: Model, dataset: Dataset, split: Split) -> Callable[[Mapping[str, tf.Tensor]], Columns]:
    """Returns a function from columns, maybe permuted, of all examples of `split` to their predictions."""
    task, network, encoder = model.task, model.on_one_device().network, dataset.encoder
    is_told = is_told_by_columns(task)
    known = {task.target: np.asarray(split.targets)}
    known |= {"weight": split.weights} if split.weights is not None else {}

    @tf.function(reduce_retracing=True, autograph=False)
    def predict(columns: dict[str, tf.Tensor]) -> tf.Tensor:
        inputs = columns if encoder is None else encoder(columns, training=False)
        given = {name: tf.cast(value, network_dtype(value.dtype)) for name, value in inputs.items()}
        outputs = network(network_input(given), training=False)
        return task.predict(outputs) if is_told else outputs

    def scored(columns: Mapping[str, tf.Tensor]) -> Columns:
        batch = scoring_batch(network)
        parts = [
            predict({name: column[start : start + batch] for name, column in columns.items()}).numpy()
            for start in range(0, len(split), batch)
        ]
        rows = np.concatenate(parts)
        return {**known, **task.columns(rows)} if is_told else sums_of_each(task, split, rows)

    return scored


def columns_of(split: Split) -> dict[str, tf.Tensor]:
    """Returns the columns of all examples."""
    return {name: tf.constant(column[:]) for name, column in split.features.items()}
