"""The `export` stage: a SavedModel, reloaded and compared."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from stages.networks.inference_memory import scoring_batch
from stages.optimization.losses import probabilities
from stages.results import Dataset, Exported, Model, Record, Trained
from stages.settings.results import ExportSettings
from stages.storage.atomic import atomic_write


def export(trained: Trained, dataset: Dataset, settings: ExportSettings, folder: Path) -> Exported:
    """Writes `folder/export/saved_model`, reloads it and compares its predictions with the model's.

    The SavedModel takes unscaled pixels, as the data set has them, and returns probabilities: it scales them itself.
    """
    path = folder / "export" / "saved_model"
    model = trained.model.on_one_device()
    serving = Serving(model, dataset.class_names)
    spec = tf.TensorSpec((None, *dataset.image_shape), tf.float32, name="images")
    signature = serving.__call__.get_concrete_function(spec)
    path.parent.mkdir(exist_ok=True)
    signatures = {"serving_default": signature}
    atomic_write(path, lambda partial: tf.saved_model.save(serving, str(partial), signatures))
    compared = dataset.test.images[: settings.compared_examples].astype(np.float32)
    difference = _largest_difference(trained.model, path, compared)
    record = Record(metrics={"export/max_abs_diff": difference})
    return Exported(path, dataset.image_shape, dataset.class_names, difference, record)


class Serving(tf.Module):
    """The exported function: from float32 [N, H, W, C] unscaled pixels to float32 [N, classes] probabilities.

    A tf.Module, because a Keras 3 model is not one, and only a callable module reloads as a function. It holds the
    weights alone: the model itself would bring the optimizer's variables along. `class_names` are UTF-8, string
    [classes], in the order of the probabilities.
    """

    def __init__(self, model: Model, class_names: Sequence[str]) -> None:
        super().__init__(name="serving")
        self.weights = [weight.value for weight in model.network.weights]
        with tf.device("/cpu:0"):  # strings live on the CPU alone; a plain constant would not be saved
            self.class_names = tf.Variable(class_names, trainable=False, name="class_names")
        # Past __setattr__, which would track the model: the traced function alone is saved.
        self.__dict__["predict"] = lambda images: probabilities(model.network(images, training=False), model.outputs)

    @tf.function
    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return self.predict(images)


def _largest_difference(model: Model, path: Path, images: np.ndarray) -> float:
    reloaded = tf.saved_model.load(str(path))  # kept by name: a function of a collected object cannot be called
    # Compiled, as training and evaluation are: op by op, bfloat16 is rounded in more places.
    predict = tf.function(lambda batch: probabilities(model.network(batch, training=False), model.outputs))
    size = min(scoring_batch(model.network), 64)
    batches = np.array_split(images, -(-len(images) // size))
    differences = [tf.reduce_max(tf.abs(reloaded(batch) - predict(batch))) for batch in map(tf.constant, batches)]
    return float(np.max(differences))  # unlike Python's max it keeps nan
