"""Prepared sets of TFDS that tests make by TFDS itself, without a download."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

IMAGE = tfds.features.Image(shape=(None, None, 3))
LABEL = tfds.features.ClassLabel(num_classes=2)


def make_set(  # noqa: PLR0913  # each is another fact of a set
    folder: Path,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    features: Mapping[str, Any],
    name: str = "made",
    file_format: str = "tfrecord",
    supervised: tuple[str, str] | None = None,
    shards: int = 1,
) -> Path:
    """Write `<folder>/<name>/1.0.0` and return it.

    Args:
        splits: from each split to its examples, by the names of features.
        supervised: the names of the set's own (input, label) pair.
    """

    class Made(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(features), supervised_keys=supervised
            )

        def _split_generators(self, manager: Any) -> Any:
            return {split: enumerate(examples) for split, examples in splits.items()}

        def _generate_examples(self) -> Any:
            raise NotImplementedError

    Made.name = name
    builder = Made(data_dir=folder, file_format=file_format)
    config = tfds.download.DownloadConfig(num_shards=shards)
    builder.download_and_prepare(download_config=config)
    return Path(builder.data_dir)
