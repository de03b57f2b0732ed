"""Validation in a training, with the weights that become its result."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from stages.evaluation.eval_step import BATCH, Scorer
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings


class Validation:
    """Scores a model on the validation split, and provides it for the result.

    Args:
        model: the whole one.
        trainable: the part trained on `dataset`: `model`, or its head, which takes features.
    """

    def __init__(
        self, model: Model, trainable: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings
    ) -> None:
        self._model = model
        self._split = dataset.val
        self._is_copy = strategy.coordinator is not None
        self._scored = model.on_one_device() if self._is_copy else trainable
        self._scorer = Scorer(strategy, self._scored)
        self._batch_size = min(max(settings.batch_size, BATCH), self._scorer.most)

    def __len__(self) -> int:
        return len(self._split)

    def score(self) -> dict[str, float]:
        """Return loss and metrics of the current weights."""
        self.present_model()
        scores = self._scorer.score(self._split, self._batch_size)
        return {"loss": scores.loss, **scores.metrics}

    def invalid_weight(self) -> str | None:
        """Return the path of the first trained weight, as last scored, that is not finite; None where all are."""
        return first_invalid(self._scored.network.trainable_weights)

    def present_model(self) -> Model:
        """Return the whole model with its current weights, on one device where servers hold it."""
        if not self._is_copy:
            return self._model
        self._scored.network.set_weights(self._model.network.get_weights())
        return self._scored


def first_invalid(weights: Sequence[keras.Variable]) -> str | None:
    """Return the path of the first weight with a nan or an inf; None where all are finite.

    A loss can stay finite over such weights, as a ReLU makes 0 of a nan.
    """
    for weight in weights:
        if "float" in weight.dtype and not tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(weight.value))):
            return str(weight.path)
    return None
