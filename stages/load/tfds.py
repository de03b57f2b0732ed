"""Image-classification sets of TensorFlow Datasets, whole and in memory."""

import numpy as np
import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from stages.errors import UserError
from stages.load.splits import assemble, divide
from stages.results import Dataset, Split
from stages.settings.data import TfdsSettings


def tfds(settings: TfdsSettings) -> Dataset:
    """Returns the set named `settings.name`, uint8 [N, H, W, C]; validation is cut from its training split.

    Raises:
        UserError: for an unknown name or split, a set that is no image classification, or pictures of several sizes.
    """
    builder = _prepared(settings)
    features = dict(builder.info.features.items())
    image, label = features.get("image"), features.get("label")
    if image is None or label is None or None in image.shape:
        raise UserError(
            f"data.name={settings.name} has features {features}",
            "`image` of one fixed size and `label`",
        )
    named = {name: _read(builder, split) for name, split in _splits(builder, settings).items()}
    train, val = divide(named["train"].images, named["train"].labels, settings.val_fraction, settings.seed, "val")
    return assemble(builder.info.full_name, train, val, named["test"], tuple(label.names))


def _prepared(settings: TfdsSettings) -> tensorflow_datasets.core.DatasetBuilder:
    try:
        builder = tensorflow_datasets.builder(settings.name, data_dir=settings.folder)
    except DatasetNotFoundError as error:
        raise UserError(
            f"data.name={settings.name} is not a TFDS data set", "a name that TFDS has", "data.name=mnist"
        ) from error
    if settings.download:
        builder.download_and_prepare()
    return builder


def _splits(builder: tensorflow_datasets.core.DatasetBuilder, settings: TfdsSettings) -> dict[str, str]:
    splits = {"train": settings.train_split, "test": settings.test_split}
    for name, split in splits.items():
        if split.split("[")[0] not in builder.info.splits:
            raise UserError(
                f"data.{name}_split={split} is not in {settings.name}",
                ", ".join(builder.info.splits),
                f"'data.{name}_split=\"{next(iter(builder.info.splits))}[:80%]\"'",
            )
    return splits


def _read(builder: tensorflow_datasets.core.DatasetBuilder, split: str) -> Split:
    # The order of the files, not TFDS's cache of decoded pictures nor its shuffling: both belong to the training input.
    config = tensorflow_datasets.ReadConfig(try_autocache=False, interleave_cycle_length=1)
    batches = builder.as_dataset(split=split, batch_size=1000, as_supervised=True, read_config=config)
    images, labels = zip(*tensorflow_datasets.as_numpy(batches), strict=True)
    return Split(np.concatenate(images), np.concatenate(labels).astype(np.int32))
