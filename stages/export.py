"""The `export` stage: a SavedModel, reloaded and compared."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from stages.exporters.saved_model import write_saved_model
from stages.networks.inference_memory import scoring_batch
from stages.optimization.losses import probabilities
from stages.results import Dataset, Exported, Model, Record, Trained
from stages.settings.results import ExportSettings
from stages.storage.atomic import atomic_write


def export(trained: Trained, dataset: Dataset, settings: ExportSettings, folder: Path) -> Exported:
    """Writes `folder/export/saved_model`, reloads it and compares its predictions with the model's.

    It takes unscaled pixels, as the data set has them, or encoded images: see `stages.exporters.saved_model.Serving`.
    """
    path = folder / "export" / "saved_model"
    model = trained.model.on_one_device()
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, lambda partial: write_saved_model(model, dataset, partial))
    compared = dataset.test.images[: settings.compared_examples].astype(np.float32)
    difference = _largest_difference(trained.model, path, compared)
    record = Record(metrics={"export/max_abs_diff": difference})
    return Exported(path, dataset.image_shape, dataset.class_names, difference, record)


def _largest_difference(model: Model, path: Path, images: np.ndarray) -> float:
    reloaded = tf.saved_model.load(str(path))  # kept by name: a function of a collected object cannot be called
    # Compiled, as training and evaluation are: op by op, bfloat16 is rounded in more places.
    predict = tf.function(lambda batch: probabilities(model.network(batch, training=False), model.outputs))
    size = min(scoring_batch(model.network), 64)
    batches = np.array_split(images, -(-len(images) // size))
    differences = [tf.reduce_max(tf.abs(reloaded(batch) - predict(batch))) for batch in map(tf.constant, batches)]
    return float(np.max(differences))  # unlike Python's max it keeps nan
