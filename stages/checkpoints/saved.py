"""The result of a training on disk, for evaluating or exporting it again, and for finding known test images."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np

from stages.checkpoints.files import Checkpoint, read, write
from stages.data.split import Split
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.reuse import KNOWN_IMAGES, VALIDATED, VALIDATED_LOSS, VALIDATED_PIXELS

TRAINED = Path("results", "train", "trained.npz")
"""The path of the result of a training in its run's folder."""

DIGESTS = "train_digests"

NAME = TRAINED.name

_VALIDATED = (VALIDATED, VALIDATED_PIXELS, VALIDATED_LOSS)


def save_trained(trained: Trained, folder: Path, dataset: Dataset) -> None:
    """Write the weights, the history and facts about the data, for using the model with other data.

    The facts are the names of the classes, and the shape and range of the images. A digest of each training image,
    including those of the initial weights, detects test examples that the model was trained on.
    """
    arrays = {f"weight.{index}": array for index, array in enumerate(trained.model.network.get_weights())}
    digests, earlier = dataset.train.described.digests, trained.model.trained_on
    arrays[DIGESTS] = digests if earlier is None else np.concatenate([digests, earlier])
    facts = {
        "step": trained.steps,
        "best_epoch": trained.best_epoch,
        "history": [dict(row) for row in trained.history],
        "weights": dict(trained.record.weights or {}),
        "metrics": {name: float(value) for name, value in trained.record.metrics.items()},
        "names": [weight.path for weight in trained.model.network.weights],
        "data": _facts_of(dataset),
        **{name: trained.record.summary.get(name) for name in _VALIDATED},
    }
    write(Checkpoint(facts, arrays), folder / NAME)


def restore_trained(
    saved: Path, model: Model, dataset: Dataset, strategy: Strategy, reporter: Reporter | None = None
) -> Trained:
    """Return the result of an earlier training, with its weights in `model`.

    The model is on one device if parameter servers hold its variables.

    Args:
        saved: The folder that `save_trained` has written.
        model: The model that receives the weights.
        dataset: The data set for which the model is used.
        strategy: The distribution strategy.
        reporter: Warns about test examples that the model was trained on.

    Raises:
        UserError: If the network is different, or the data has different classes or images.
    """
    checkpoint = read(saved / NAME)
    facts, arrays = checkpoint.facts, checkpoint.arrays
    _check_data(facts["data"], dataset)
    weights = [arrays[f"weight.{index}"] for index in range(len(facts["names"]))]
    before = [(_plain(name), array.shape) for name, array in zip(facts["names"], weights, strict=True)]
    now = [(_plain(weight.path), tuple(weight.shape)) for weight in model.network.weights]
    for theirs, here in itertools.zip_longest(before, now):
        if theirs != here:
            raise UserError(
                f"the trained weights in {saved} do not fit this network: the file has {theirs or 'nothing'} where the "
                f"network has {here or 'nothing'}",
                "the code that the network was trained with, or a new run",
                "from=null run=null resume=never",
            )
    model.network.set_weights(weights)
    trained = model.on_one_device() if strategy.coordinator is not None else model
    known = known_examples(arrays.get(DIGESTS), dataset.test, "the model", reporter or Reporter())
    kept = ("val/best_", "train/best_epoch", "train/last_epoch", "train/weights_epoch")
    metrics = {name: value for name, value in facts["metrics"].items() if name.startswith(kept)}
    validated = {name: facts[name] for name in _VALIDATED if facts.get(name)}
    record = Record(metrics=metrics, weights=facts["weights"] or None, summary={**known, **validated})
    return Trained(trained, tuple(facts["history"]), int(facts["best_epoch"]), checkpoint.step, record)


def _plain(path: str) -> str:
    """Return the path of a weight without the numbers with which Keras distinguishes the layers of a process."""
    return re.sub(r"_\d+(?=/|$)", "", path)


def _facts_of(dataset: Dataset) -> dict[str, Any]:
    facts: dict[str, Any] = {"class_names": list(dataset.task.names)}
    if dataset.images is not None:
        shape, ends = dataset.images.shape, dataset.images.ends
        return {**facts, "image_shape": list(shape), "pixel_range": list(ends)}
    described = (f"{name}: {one.kind} {one.dtype} {list(one.shape)}" for name, one in dataset.features.items())
    return {**facts, "features": sorted(described)}


def _check_data(trained_on: dict[str, Any], dataset: Dataset) -> None:
    """Raise UserError for data for which the predictions of the model would be wrong without an error."""
    now = _facts_of(dataset)
    for name, before in trained_on.items():
        if now.get(name) != before:
            raise UserError(
                f"{dataset.name} has {name} {now.get(name)}, but the model was trained on {before}",
                "data with the same classes or targets, and images with the same shape (data.size) and pixel range",
                "data=<option>",
            )


def known_examples(trained_on: np.ndarray | None, test: Split, weights: str, reporter: Reporter) -> dict[str, int]:
    """Warn about examples of `test` that `weights` were trained on; return their number as a fact, if there are any.

    Args:
        trained_on: Digests of the examples that the weights were trained on; None if they are unknown.
        test: The test examples.
        weights: The name of the weights, for the warning.
        reporter: Receives the warning.
    """
    known = 0 if trained_on is None else int(np.isin(test.described.digests, trained_on).sum())
    if known:
        part = f"{known:,} of these {len(test):,} test examples"
        reporter.warn(f"{weights} was trained on {part}, so its test metrics are too optimistic")
    return {KNOWN_IMAGES: known} if known else {}


def digests_of_run(weights: Path) -> np.ndarray | None:
    """Return the digests of the images that a run was trained on.

    It is None if `weights` is not in the folder of a run, or the run has no digests.

    Args:
        weights: A file or folder in the run's folder.
    """
    for folder in list(weights.resolve().parents)[:3]:
        try:
            with np.load(folder / TRAINED, allow_pickle=False) as arrays:
                return np.asarray(arrays[DIGESTS]) if DIGESTS in arrays.files else None
        except (OSError, ValueError):
            continue
    return None
