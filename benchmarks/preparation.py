"""Preparation of images, once for all runs, against tf.data that reads and decodes the same with all cores."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Samples, interleave, timed
from benchmarks.processes import prepared


def mnist(rounds: int) -> Samples:
    """Measure MNIST: 70,000 PNGs of 28×28."""
    return _against_tfdata("mnist", prepared("mnist"), None, rounds)


def flowers(rounds: int) -> Samples:
    """Measure tf_flowers: 3,670 JPEGs with a short side of 160, resized to 96×96."""
    return _against_tfdata("tf_flowers", prepared("tf_flowers"), 96, rounds)


def cifar10(rounds: int) -> Samples:
    """Measure a set like CIFAR-10, made here: 20,000 color PNGs of 32×32 in ten classes."""
    with tempfile.TemporaryDirectory() as folder:
        _write_like_cifar10(folder)
        return _against_tfdata("like_cifar10", Path(folder), None, rounds)


def _against_tfdata(name: str, folder: Path, size: int | None, rounds: int) -> Samples:
    ways = {
        "pipeline": timed(partial(_prepare, name, folder, size)),
        "tf.data": timed(partial(_read, name, folder, size)),
    }
    if size is not None:
        ways["tf.data, antialiased"] = timed(partial(_read, name, folder, size, antialias=True))
    return interleave(ways, rounds, warm_up=1)


def _prepare(name: str, folder: Path, size: int | None) -> None:
    from stages.load.tfds import tfds
    from stages.settings.data import TfdsSettings

    with tempfile.TemporaryDirectory() as cache:
        tfds(TfdsSettings(name=name, dir=str(folder), size=size, split_seed=1), cache=Path(cache))


def _read(name: str, folder: Path, size: int | None, antialias: bool = False) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def resized(image: Any, label: Any) -> Any:
        return (image if size is None else tf.image.resize(image, [size, size], antialias=antialias)), label

    builder = tfds.builder_from_directory(next((folder / name).iterdir()))
    for split in builder.info.splits:
        source = builder.as_dataset(split, as_supervised=True, read_config=tfds.ReadConfig(try_autocache=False))
        for _ in source.map(resized, num_parallel_calls=tf.data.AUTOTUNE).batch(256).prefetch(tf.data.AUTOTUNE):
            pass


def _write_like_cifar10(folder: str) -> None:
    import numpy as np
    import tensorflow_datasets as tfds

    class LikeCifar10(tfds.core.GeneratorBasedBuilder):
        """Smooth random images, which compress about as photos do."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(32, 32, 3), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            )
            return self.dataset_info_from_configs(features=features, supervised_keys=("image", "label"))

        def _split_generators(self, _: Any) -> Any:
            return {"train": self._generate_examples(18_000, 0), "test": self._generate_examples(2_000, 1)}

        def _generate_examples(self, count: int, seed: int) -> Any:
            random = np.random.default_rng(seed)
            for index in range(count):
                rough = random.normal(0, 12, (32, 32, 3)).cumsum(0).cumsum(1)
                yield index, {"image": rough.astype(np.uint8), "label": index % 10}

    LikeCifar10(data_dir=folder).download_and_prepare()
