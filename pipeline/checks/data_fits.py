"""Check that the network, the task and the augmentation fit the data, as far as its settings and first rows show."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.config.experiment import Experiment
from stages.errors import UserError
from stages.settings.arrays import ArraysSettings, is_series
from stages.settings.by_rows import has_columns, is_mixed
from stages.settings.data import (
    AugmentSettings,
    DataSettings,
    DigitsSettings,
    FolderSettings,
    ImageFolderSettings,
    NormalizeSettings,
    SyntheticSettings,
)
from stages.settings.date_columns import columns_of_dates
from stages.settings.first_rows import check_target
from stages.settings.folders import classes_of
from stages.settings.model import ModelSettings, NBeatsSettings, NetworkSettings
from stages.settings.npz import headers_in
from stages.settings.series import SeriesSettings
from stages.settings.table import TableSettings
from stages.settings.train import AutoTaskSettings, SegmentationSettings, TaskSettings


def check_data(experiment: Experiment) -> None:
    """Refuse settings that would fail when the data is loaded or the network is built.

    Custom sources and networks are not checked.

    Raises:
        UserError: If the data lacks the features that the network or the augmentation requires, or its target does not
            fit the task.
    """
    data = experiment.of("load", DataSettings)
    if data is None or data._target_ != type(data)._target_:
        return
    name = f"data={experiment.choices.get('data', data._target_)}"
    lacking = {"images": data.is_without_images, "texts": _is_without_texts(data)}
    if isinstance(data, ArraysSettings):
        lacking = _lacking_in_arrays(data)
    lacking.setdefault("windows", not isinstance(data, SeriesSettings))
    model = experiment.of("model", ModelSettings)
    network = model.network if model else None
    takes: tuple[str, ...] = ()
    if isinstance(network, NetworkSettings) and network._target_ == type(network)._target_:
        takes = network.takes
    if takes and all(lacking[kind] for kind in takes):
        problem = f"model={experiment.choices.get('model')} requires {' or '.join(takes)}, but {name} has none"
        raise UserError(problem, "a network that fits the data", "model=auto")
    _check_encoders(experiment, data, model, takes)
    normalize = experiment.of("normalize", NormalizeSettings)
    if normalize is not None and normalize.tokenizer is not None and lacking["images"] and lacking["texts"]:
        raise UserError(f"normalize.tokenizer requires texts, but {name} has none", "", "normalize.tokenizer=null")
    _check_augment(experiment, data, name, lacking["images"])
    task = model.task if model and isinstance(model.task, TaskSettings) else None
    classes = _classes_of(data)
    if classes is not None and task is not None:
        _check_classes(name, classes, task)
    if isinstance(network, NetworkSettings) and network._target_ == type(network)._target_:
        _check_map(experiment, network, isinstance(data, ImageFolderSettings) and data.masks is not None)
    if (
        isinstance(data, TableSettings) and experiment.from_stage is None
    ):  # otherwise a trained model determines the target
        check_target(data)
        _check_dates(data)
    _check_forecast(name, task, data, network)


def _check_forecast(name: str, task: TaskSettings | None, data: DataSettings, network: Any) -> None:
    """Refuse a forecast of data without windows, another task for windows, and series that make no windows."""
    kind = "auto" if task is None else task.kind
    if not isinstance(data, SeriesSettings):
        if kind == "forecast":
            problem = f"task=forecast does not fit {name}, which has no next values"
            raise UserError(problem, "data=series, or another task", "task=auto")
        return
    if kind not in ("auto", "forecast", "classification"):
        problem = f"task={kind} does not fit {name}, whose targets are the next values, or a class"
        raise UserError(problem, "task=forecast or task=classification", "task=forecast")
    if data.predicts_classes and isinstance(network, NBeatsSettings):
        problem = f"model=nbeats predicts next values, but {data.target} is a class"
        raise UserError(problem, "a network that predicts classes", "model=causal_cnn")
    from stages.data.series import planned  # imports pandas, which takes half a second

    planned(data)


def _check_dates(data: TableSettings) -> None:
    """Refuse dates that cannot be read, which are looked for in the first rows of the table.

    With `data.on_error=skip`, loading decides, as rows that it leaves out may be what makes a column unclear.
    """
    if data.on_error == "fail" and columns_of_dates(data):
        from stages.data.planned import refuse_dates  # imports pandas, which takes half a second

        refuse_dates(data)


def _check_augment(experiment: Experiment, data: DataSettings, name: str, lacks_images: bool) -> None:
    """Refuse an augmentation of images that the data does not have, and mixing of images among other columns."""
    augment = experiment.of("augment", AugmentSettings)
    if augment is None:
        return
    if lacks_images and (augment.changes or augment.mixes):
        raise UserError(f"augment requires images, but {name} has none", "augment=none", _without_changes(augment))
    if augment.mixes and isinstance(data, TableSettings) and is_mixed(data):
        problem = "augment.mixup and augment.cutmix do not support images among other columns"
        raise UserError(problem, "images alone", "augment.mixup=0 augment.cutmix=0")


def _check_encoders(
    experiment: Experiment, data: DataSettings, model: ModelSettings | None, takes: tuple[str, ...]
) -> None:
    """Refuse a network of images alone for images among other columns, and encoders of other columns.

    Args:
        experiment: The experiment.
        data: The settings of the data; only tables are checked.
        model: The settings of the model.
        takes: The kinds of inputs of the network; empty if it accepts any.
    """
    if not isinstance(data, TableSettings) or model is None:
        return
    mixed, declared = is_mixed(data), data.declared
    if mixed and takes == ("images",):
        option = experiment.choices.get("model")
        problem = f"model={option} takes one image and nothing else, but the table has other columns, too"
        expected = "model=auto, in which each image has an encoder, or data.only_images=true for one column of images"
        raise UserError(problem, expected, f"model=auto model.encoders.{data.images[0]}=cnn_photo")
    for column in model.encoders:
        kind = declared.get(column)
        usable = [name for name, one in declared.items() if one in ("image", "text")]
        if column in data.header.columns and kind not in ("image", "text"):
            problem = f"model.encoders.{column}: the column {column} is not declared as an image or a text"
            raise UserError(problem, f"one of these columns: {', '.join(usable) or 'none'}", "model.encoders={}")
        if column not in data.header.columns:
            raise UserError(f"model.encoders.{column}: there is no column {column}", usable, "model.encoders={}")
    if model.encoders and not mixed and (data.images or not has_columns(vars(data))):
        column = next(iter(model.encoders))
        problem = f"model.encoders.{column}: {column} is the only feature, which model=<option> takes itself"
        raise UserError(problem, "a column among others", "model.encoders={}")


def _check_map(experiment: Experiment, network: NetworkSettings, has_masks: bool) -> None:
    """Refuse a network that returns one vector per image for masks, and a task without masks for data that has them."""
    model = experiment.of("model", ModelSettings)
    task = model.task if model and isinstance(model.task, TaskSettings) else None
    if has_masks and task is not None and task.kind not in ("auto", "segmentation"):
        problem = f"task={task.kind} does not match data.masks"
        raise UserError(problem, "task=segmentation, or data without masks", "task=segmentation")
    if (has_masks or isinstance(task, SegmentationSettings)) and not network.returns_maps:
        asked = "data.masks" if has_masks else "task=segmentation"
        problem = f"model={experiment.choices.get('model')} does not return masks, which {asked} requires"
        raise UserError(problem, "model=unet, or a network of keras.applications", "model=unet")


def _lacking_in_arrays(data: ArraysSettings) -> dict[str, bool]:
    """Return whether the arrays lack images, texts and series, according to the headers of the training arrays."""
    lacking = {"images": True, "texts": True, "windows": True}
    kinds = data.features if isinstance(data.features, Mapping) else {}
    alone = None if data.target is not None else kinds.get("x", kinds.get("features"))
    headers = headers_in(data.path)
    for name in data.parts(headers)["train"][0]:
        shape, dtype = headers[name]
        is_number, is_window = dtype[0] in "fiub", is_series(shape, dtype, kinds.get(name, alone))
        lacking["images"] &= is_window or (is_number and len(shape) < 3)
        lacking["texts"] &= is_number
        lacking["windows"] &= not is_window
    return lacking


def _is_without_texts(data: DataSettings) -> bool:
    """Return whether the settings show that no example has a text."""
    if isinstance(data, TableSettings):
        return "text" not in data.declared.values()
    return isinstance(data, (DigitsSettings, SyntheticSettings, ImageFolderSettings, SeriesSettings))


def _classes_of(data: DataSettings) -> int | None:
    """Return the number of classes of a source; None if its target may not be a class."""
    if isinstance(data, ImageFolderSettings) and data.masks is not None:
        return None
    if isinstance(data, FolderSettings):
        return len(classes_of(data.folder, data.suffixes)[1])
    return 10 if isinstance(data, DigitsSettings) else data.num_classes if isinstance(data, SyntheticSettings) else None


def _without_changes(settings: AugmentSettings) -> str:
    """Return the settings to type so that the augmentation does not change anything."""
    fields = [field for field in dataclasses.fields(settings) if field.name not in ("_target_", "where", "magnitude")]
    changed = [field for field in fields if getattr(settings, field.name) != field.default]
    return " ".join(f"augment.{field.name}={str(field.default).lower()}" for field in changed)


def _check_classes(name: str, classes: int, task: TaskSettings) -> None:
    if task.kind not in ("auto", "classification"):
        problem = f"task={task.kind} does not fit {name}, whose target is one of {classes} classes"
        raise UserError(problem, "task=classification", "task=classification")
    if isinstance(task, AutoTaskSettings) and task.single_logit and classes != 2:
        raise UserError(
            f"task.single_logit=true requires 2 classes, but {name} has {classes}", "", "task.single_logit=false"
        )
