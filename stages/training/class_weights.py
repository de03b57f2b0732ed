"""Weights of classes in the loss."""

import numpy as np

from stages.errors import UserError
from stages.results import Dataset


def class_weights(weights: object, dataset: Dataset) -> list[float] | None:
    """Returns a weight for each class, or None for all alike.

    Raises:
        UserError: where there are not as many weights as classes.
    """
    if weights is None:
        return None
    if weights == "balanced":
        counts = np.bincount(dataset.train.labels, minlength=dataset.num_classes)
        return [float(len(dataset.train) / (dataset.num_classes * max(count, 1))) for count in counts]
    assert isinstance(weights, list)
    if len(weights) != dataset.num_classes:
        raise UserError(
            f"train.class_weights has {len(weights)} numbers",
            f"{dataset.num_classes}, one for each of {', '.join(dataset.class_names)}",
            "train.class_weights=balanced",
        )
    return [float(weight) for weight in weights]
