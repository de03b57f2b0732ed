"""The `normalize` stage: how features become what a network takes: pixels are scaled, columns of tables encoded."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from stages.declared import declare
from stages.errors import UserError
from stages.features.dates import DateFeature
from stages.features.drift import with_bins
from stages.features.encoder import NAME, learn_encoder, restore_encoder, save_encoder, saved_features
from stages.features.images import ImageFeature, images_of
from stages.networks.keras_internals import keep_names
from stages.networks.rescaling import after, recorded, restore_scaling, save_scaling
from stages.reporter import Reporter
from stages.results import Dataset, Normalization, Record
from stages.settings.data import NormalizeSettings
from stages.settings.date_formats import DateFormat
from stages.settings.table import KINDS, TableSettings, declaring
from stages.settings.trained_table import TrainedTableSettings

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of red, green and blue in 0..1. Source: pytorch.org/vision/stable/models.html, as `torch` in keras.applications."""

TARGETS = "targets.json"
"""File of what a network's answers depend on: the classes in their order, or the mean and std of the targets."""


def normalize(
    dataset: Dataset,
    settings: NormalizeSettings,
    reporter: Reporter | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Return the data set with its scaling; the pixels themselves stay as they are.

    The scaling becomes the first layer of the model, so that the export takes unscaled pixels. Statistics are those of
    the training split alone. `auto` is 0..1 unless the network, built later, declares another scaling.

    Raises:
        UserError: for `imagenet` with images of other than 1 or 3 channels.
    """
    images = images_of(dataset.features)
    scalings = {name: _scaling_of(name, feature, dataset, settings) for name, feature in images.items()}
    dataset = dataclasses.replace(dataset, scalings=scalings)
    if dataset.images is None:
        keep_names(dataset.features)
        dataset = learn_encoder(dataset, settings, cache, reporter or Reporter())
    else:
        features = with_bins(dataset.features, dataset.train.features)
        dataset = dataclasses.replace(dataset, features=features, record=Record())
    return dataclasses.replace(dataset, record=Record({**dataset.record.params, **recorded(scalings)}))


def _scaling_of(name: str, images: ImageFeature, dataset: Dataset, settings: NormalizeSettings) -> Normalization:
    """Return the scaling of a feature that is images."""
    low, high = images.ends
    to_one = Normalization((1.0 / (high - low),), (-low / (high - low),))
    if settings.method in ("auto", "rescale"):
        return dataclasses.replace(to_one, automatic=settings.method == "auto")
    if settings.method == "standardize":
        mean, std = dataset.train.described.mean_and_std(name)
        std = np.where(std < 1e-6, 1.0, std)  # a constant channel is not scaled
        return Normalization(tuple(1.0 / std), tuple(-mean / std))
    if settings.method == "imagenet":
        mean, std = np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
        if images.channels == 1:
            mean, std = mean.mean(keepdims=True), std.mean(keepdims=True)
        elif images.channels != 3:
            problem = f"normalize=imagenet does not support images with {images.channels} channels"
            raise UserError(problem, "1 or 3 channels", "normalize=standardize")
        return after(to_one, Normalization(tuple(1.0 / std), tuple(-mean / std)))
    return Normalization()


def _save(dataset: Dataset, folder: Path) -> None:
    """Write how the features of `dataset` become what a network takes, and how its targets are answered."""
    if dataset.scalings:
        save_scaling(dataset, folder)
    if dataset.images is None:
        save_encoder(dataset, folder)
    (folder / TARGETS).write_text(json.dumps(dataset.task.targets.learnt))


def _restore(saved: Path, dataset: Dataset, reporter: Reporter | None = None, cache: Path | None = None) -> Dataset:
    """Return `dataset` as the run prepared its own, whose values and vocabularies a trained model keeps."""
    dataset = _with_targets(saved, dataset)
    if dataset.images is None:
        dataset = restore_encoder(saved, dataset, cache, reporter or Reporter())
    return restore_scaling(saved, dataset) if images_of(dataset.features) else dataset


def with_kinds(settings: Any, saved: Path) -> Any:
    """Return the settings of a table with the kinds and classes that a run has saved with its normalization.

    Settings of any other stage are returned as they are.
    """
    if not isinstance(settings, TableSettings):
        return settings
    features = saved_features(saved) if (saved / f"{NAME}.json").is_file() else {}
    kinds = {
        one.column_name(name): "whole" if one.dtype == "int64" else one.kind
        for name, one in features.items()
        if one.kind in KINDS
    }
    dates = {
        one.column_name(name): DateFormat(one.date_format, one.time_zone)
        for name, one in features.items()
        if isinstance(one, DateFeature)
    }
    learnt = _learnt(saved)
    targets = dict.fromkeys(settings.targets, "number" if "mean" in learnt else "category")
    return TrainedTableSettings(**vars(settings), kinds={**kinds, **targets}, dates=dates, classes=learnt["names"])


def _learnt(saved: Path) -> dict[str, Any]:
    content = json.loads((saved / TARGETS).read_text())
    return {name: tuple(values) for name, values in content.items()}


def _with_targets(saved: Path, dataset: Dataset) -> Dataset:
    """Return `dataset` with the task as the run had it; classes, of which it may lack some, by their names.

    A data set of other classes or targets stays as it is: the trained weights refuse it.

    Raises:
        UserError: where the target is of numbers here or there alone.
    """
    learnt = _learnt(saved)
    if dataset.task.targets.learnt == learnt:
        return dataset
    before, names = dataset.task.names, learnt["names"]
    if {*dataset.task.targets.learnt} != {*learnt}:
        fix = declaring(dict.fromkeys(names, "number")) if "mean" in learnt else ""
        problem = f"{dataset.name} has a target for task={dataset.task.kind}, but the model has a different task"
        raise UserError(problem, f"the target that the model was trained on ({', '.join(names[:5])})", fix)
    task = dataclasses.replace(dataset.task.targets, **learnt).task()
    if task.kind == "classification" and {*before} <= {*names}:
        places = np.array([names.index(name) for name in before], np.int32)
        return dataset.with_each_split(
            lambda one: dataclasses.replace(one, targets=places[one.target_values]), task=task
        )
    return dataclasses.replace(dataset, task=task) if (*before,) == names else dataset


declare(normalize, save=_save, restore=_restore, adapt=with_kinds)
