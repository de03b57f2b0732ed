"""A LiteRT file, formerly TensorFlow Lite: for phones and small devices."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from stages.data.columns import evenly_spread
from stages.data.examples import network_dtype
from stages.errors import UserError
from stages.exporters.exporter import LOADER, Exporter, answers_of
from stages.features.images import images_of
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class LiteRT(Exporter):
    """A file with the signature `serving_default`, from `images` to `probabilities`, both float32, any batch size.

    A network of another precision is written in float32.
    """

    suffix = ".tflite"
    loader = LOADER
    takes_features = False

    weights: str = "float32"
    """`float32`, `float16` (half the size), or `int8` (a quarter of it). With `int8`, the layers for images and words
    also compute in whole numbers. Layers for columns of numbers do not: eight bits hold too little of a number."""
    representative_examples: int = 200
    """Number of training examples by which the ranges of these whole numbers are measured."""

    def check(self, model: Model, dataset: Dataset) -> None:
        """See `Exporter`. Operations that LiteRT lacks, it lacks for weights of any size."""
        known = model.task.targets.learnt
        learnt = np.abs([0.0, *known.get("mean", ()), *known.get("std", ())]).max()
        if self.weights == "float16" and learnt > np.finfo(np.float16).max:
            problem = f"the mean or std of a target, {learnt:.6g}, is too large for LiteRT's float16 weights"
            raise UserError(problem, "weights of a different type, or targets in larger units", "export=saved_model")
        LiteRT().converted(model, dataset)

    def converted(self, model: Model, dataset: Dataset) -> bytes:
        """See `Exporter`.

        Raises:
            UserError: where LiteRT lacks an operation of the network, such as those of a recurrent layer.
        """
        function, owner = answers_of(model.in_float32, dataset)
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], owner)
        if self.weights != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if self.weights == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if self.weights == "int8" and not _has_numbers(dataset):
            converter.representative_dataset = lambda: self._representative(dataset)
        try:
            with warnings.catch_warnings(action="ignore"):  # of the converter's own interpreter, which is deprecated
                return bytes(converter.convert())
        except Exception as error:  # of a class that TensorFlow does not export; a line of it names the operation
            missing = re.search(r"'tf\.(\w+)'", str(error))
            if missing is None:
                raise
            raise UserError(
                f"LiteRT does not support the operation {missing[1]}, which this network uses",
                "a format that supports this network",
                "export=saved_model",
            ) from error

    def _representative(self, dataset: Dataset) -> Iterator[dict[str, np.ndarray]]:
        """Yield examples one by one, evenly spread over the training split, whose order may be that of the classes."""
        for row in evenly_spread(len(dataset.train), self.representative_examples):
            given = {name: column[row : row + 1] for name, column in dataset.train.inputs.items()}
            yield {name: np.asarray(value, network_dtype(value.dtype).as_numpy_dtype) for name, value in given.items()}


def _has_numbers(dataset: Dataset) -> bool:
    """Return whether any input of the network has numbers that are neither pixels nor indices."""
    images = images_of(dataset.features)
    return any(name not in images and np.dtype(one.dtype).kind == "f" for name, one in dataset.train.inputs.items())
