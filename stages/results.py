"""Results of the stages: frozen dataclasses, each with a record for the runner."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stages.data.columns import Column
from stages.dataset_rules import check, int32_labels
from stages.errors import UserError
from stages.images import Described, describe

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclass(frozen=True)
class Record:
    """Everything that the runner records for a stage.

    The types below add a record that all results of the type share, as `implied_record`.

    params: facts that the stage has determined and not measured, under the stage's name; one with a slash
        (`data/height`) is a full name.
    metrics: numbers by their full name, such as `test/accuracy`; a one-element array or tensor counts as a number.
    files: artifacts, from the folder they are filed under to a file or directory on disk, or any iterable of them.
        Paths may be strings, and relative to the working directory or to the run's folder; they are kept as a `Path`
        or a tuple of them.
    weights: for `summary.json`, the epoch whose weights the result has (`epoch`, counted from 1), whether that is the
        `best` or the `last` (`selection`), by which metric it was chosen (`monitor`), and whether they are their
        exponential moving average (`ema`); None for a stage that does not train.
    summary: facts for `summary.json`: `replicas` and `precision` under these keys, all others under `facts`.
    datasets: inputs of the run; each fingerprint is recorded once.
    models: exported models, which are uploaded.
    on_exit: called when every stage has run.

    Raises:
        UserError: if one of these is not a mapping, or `files` holds something that is not a path.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    datasets: tuple[Dataset, ...] = ()
    models: tuple[Exported, ...] = ()
    on_exit: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        for name in ("params", "metrics", "files", "summary"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise UserError(f"Record.{name} is of type {type(value).__name__}", "a mapping from names to values")
            object.__setattr__(self, name, {str(key): item for key, item in value.items()})
        files = {folder: _paths(folder, value) for folder, value in self.files.items()}
        object.__setattr__(self, "files", files)


def _paths(folder: str, value: Any) -> Path | tuple[Path, ...]:
    """Returns one path as a `Path`, and any iterable of paths as a tuple; those of a set are sorted."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike, bytes))
    parts = list(value) if several else [value]
    for part in parts:
        if not isinstance(part, (str, os.PathLike)) or not str(part):
            raise UserError(
                f"Record.files['{folder}'] holds {part!r}, of type {type(part).__name__}", "paths: str or pathlib.Path"
            )
    paths = tuple(Path(part).expanduser() for part in parts)
    if not several:
        return paths[0]
    return tuple(sorted(paths)) if isinstance(value, (set, frozenset)) else paths


def as_number(value: Any) -> float | None:
    """Returns a number, a one-element array or a one-element tensor as a float; None for everything else.

    Text is not a number, even where it spells one; nor is a complex number or an integer beyond the range of a float.
    """
    if value is None or isinstance(value, (str, bytes, Mapping, complex)):
        return None
    try:
        if isinstance(value, numbers.Real | Decimal):
            return float(value)
        # NumPy cannot convert a tensor of bfloat16 by itself.
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        if array.size != 1 or array.dtype.kind in "OUSMmc":
            return None
        return float(array.reshape(()).astype(np.float64))
    except (TypeError, ValueError, OverflowError, AttributeError, NotImplementedError):
        return None


@dataclass(frozen=True)
class Strategy:
    """Devices and replicas that compute.

    devices: TensorFlow names of all devices that compute, including those of other workers.
    layers: for model parallelism, from patterns of layer names to devices; None: every replica holds the whole model.
    coordinator: a ClusterCoordinator where workers train asynchronously on variables that servers keep, else None.
    fixed_shapes: whether every batch must have the same shape, as on TPUs.
    """

    distribution: tf.distribute.Strategy
    devices: tuple[str, ...]
    layers: Mapping[str, str] | None = None
    coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None
    fixed_shapes: bool = False
    record: Record = Record()

    @property
    def in_sync(self) -> int:
        """The number of replicas that share a batch."""
        return 1 if self.coordinator else int(self.distribution.num_replicas_in_sync)

    @property
    def replicas(self) -> int:
        """The number of replicas that compute, whether they share batches or take turns."""
        return 1 if self.layers is not None else len(self.devices)

    @property
    def implied_record(self) -> Record:
        return Record(summary={"replicas": self.replicas, "devices": list(self.devices)})


SAMPLED = 32
"""Images that stand for a split where it would take long to read all."""


@dataclass(frozen=True)
class Split:
    """images: uint8 or float32 [N, H, W, C], unscaled; labels: int32 [N], in [0, number of classes); other whole
    numbers become int32.

    An array is held in memory; others are read at each use. cached: their digests and moments, where a cache has them.
    numbers: of the examples in their source, int64 [N]; files: their paths in it, where it has one for each. None:
    unknown.
    """

    images: Column
    labels: np.ndarray
    cached: Described | None = None
    numbers: np.ndarray | None = None
    files: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", int32_labels(self.labels))

    @cached_property
    def ends(self) -> tuple[float, float] | None:
        """The least and the greatest pixel, nan where one is; None where images are not in memory."""
        images = self.images
        return (float(images.min()), float(images.max())) if isinstance(images, np.ndarray) else None

    @cached_property
    def described(self) -> Described:
        """Digests and moments of the images; reads all of them unless a cache has these."""
        return self.cached or describe(self.images)

    @property
    def is_at_hand(self) -> bool:
        """Whether `described` costs no reading: images are in memory, or a cache has it. Else it may take hours."""
        return self.cached is not None or isinstance(self.images, np.ndarray)

    @property
    def is_described(self) -> bool:
        """Whether `described` is known already."""
        return self.cached is not None or "described" in self.__dict__

    @cached_property
    def sampled(self) -> np.ndarray:
        """Digests of SAMPLED images, uint64, evenly spread over the split; of all where it has fewer. Reads them."""
        rows = np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64))
        return describe(self.images[rows]).digests

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Normalization:
    """Scaled pixel = pixel * scale + offset; one number a channel, or one for all of them.

    automatic: whether a network that declares a scaling gets that one instead.
    """

    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)
    automatic: bool = False


class Augmentation(Protocol):
    """A pure function of images and random numbers, so that a resumed run sees the same images again.

    The result for an image must depend neither on the other images of the batch nor on its place among them.
    """

    @property
    def randoms(self) -> int:
        """Random numbers that it takes for each image."""

    def __call__(self, images: tf.Tensor, uniforms: tf.Tensor) -> tf.Tensor:
        """Takes float32 [b, H, W, C] and float32 [b, randoms] in [0, 1); returns float32 [b, H, W, C]."""


class Mixing(Protocol):
    """Mixes each example of a global batch with another one of it; see `stages.augmentations.mixing`."""

    def partners(self, rows: tf.Tensor, count: tf.Tensor, key: Callable[[str], tf.Tensor]) -> tf.Tensor:
        """Returns the rows, int64 [b], that `rows` of a global batch of `count` examples are mixed with."""

    def draw(self, batch_size: int, key: Callable[[str], tf.Tensor]) -> tf.Tensor:
        """Returns the random numbers of each row of a global batch: float64 [batch_size, n]."""

    def __call__(
        self, images: tuple[tf.Tensor, tf.Tensor], labels: tuple[tf.Tensor, tf.Tensor], numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns mixed images, float32 [b, H, W, C], and labels, float32 [b, classes]; each pair: own, partners'."""


@dataclass(frozen=True)
class Dataset:
    """Three disjoint splits, and how their images are scaled, augmented and mixed.

    pixel_range: the least and the greatest value that a pixel can have.
    fingerprint: 32 hexadecimal digits that change with any pixel, label or split.
    augmentation: applied to each training image by itself; None: none.
    mixing: then applied to pairs of training images; None: none.
    augments_in_step: whether the training step applies `augmentation`, on its device; else the input does.
    resize: how an encoded image of another size becomes one of this set: `stretch`, `crop` or `pad`; see
        `stages.data.decode.Decoder`.
    is_shuffled: whether each epoch takes the training split in an order of its own; else in that of the split.

    Raises:
        UserError: where a split is empty, shapes or labels do not fit, the dtype is neither uint8 nor float32, class
            names are not two or more different texts, or pixels are not finite or outside the range (as far as they
            are in memory).
    """

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    pixel_range: tuple[float, float]
    fingerprint: str
    normalization: Normalization = Normalization()
    augmentation: Augmentation | None = None
    mixing: Mixing | None = None
    augments_in_step: bool = False
    record: Record = Record()
    resize: str = "stretch"
    is_shuffled: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(self.class_names))
        check(self)

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def implied_record(self) -> Record:
        height, width, channels = self.image_shape
        sizes = {f"{name}_examples": len(split) for name, split in self.splits.items()}
        facts = {"classes": self.num_classes, "height": height, "width": width, "channels": channels, **sizes}
        params = {f"data/{name}": value for name, value in facts.items()}
        return Record(params, summary={"data": facts}, datasets=(self,))


@dataclass(frozen=True)
class Model:
    """A network from unscaled pixels, float32 [b, H, W, C], to float32 [b, classes].

    outputs: `logits` or `probabilities`.
    policy: the Keras dtype policy that it was built under.
    rebuild: makes the same network on one device, with other weights; None where this one works everywhere.
    rebuild_in_float32: the same, in float32 whatever the policy; None for a model that cannot be built again.
    metrics: the network's own; their state must be sums, which replicas can add to.
    augmentation: applied by the training step before the network; None where the input applies it.
    mixed_labels: whether training labels are float32 [b, classes], rows that add up to 1, and not int32 [b].
    """

    network: keras.Model
    outputs: str
    policy: str
    metrics: tuple[keras.metrics.Metric, ...] = ()
    rebuild: Callable[[], keras.Model] | None = None
    record: Record = Record()
    augmentation: Augmentation | None = None
    mixed_labels: bool = False
    rebuild_in_float32: Callable[[], keras.Model] | None = None

    @property
    def has_own_loss(self) -> bool:
        """Whether the network defines its own loss."""
        return bool(getattr(self.network, "has_own_loss", False))

    @property
    def implied_record(self) -> Record:
        return Record(summary={"precision": self.policy})

    def on_one_device(self) -> Model:
        """Returns this model with its current weights on one device, where it can be evaluated and exported."""
        if self.rebuild is None:
            return self
        copy = self.rebuild()
        copy.set_weights(self.network.get_weights())
        return dataclasses.replace(self, network=copy, rebuild=None)

    @cached_property
    def in_float32(self) -> Model:
        """This model on one device, its network in float32, with the weights that it has now, at the first use.

        Raises:
            UserError: where the network computes in another precision and cannot be built again.
        """
        if self.policy == "float32":
            return self.on_one_device()
        if self.rebuild_in_float32 is None:
            raise UserError(
                f"a network in {self.policy} that cannot be built again in float32",
                "Model.rebuild_in_float32, as the stage model sets it",
                "precision=float32",
            )
        copy = self.rebuild_in_float32()
        copy.set_weights([np.asarray(weight, np.float32) for weight in self.network.get_weights()])
        return dataclasses.replace(self, network=copy, policy="float32", rebuild=None)


@dataclass(frozen=True)
class Trained:
    """The model with its final weights.

    history: a mapping of metrics for each epoch. best_epoch: counted from 1.
    """

    model: Model
    history: tuple[Mapping[str, float], ...]
    best_epoch: int
    steps: int
    record: Record = Record()


@dataclass(frozen=True)
class Evaluation:
    """confusion: int64 [classes, classes], rows are true classes, columns predicted ones."""

    loss: float
    accuracy: float
    confusion: np.ndarray
    record: Record = Record()


@dataclass(frozen=True)
class Exported:
    """Files from unscaled pixels, [N, H, W, C], to probabilities; see `stages.exporters`.

    path: the SavedModel, else the first file.
    max_abs_diff: the largest difference between its probabilities, reloaded, and the model's.
    format: its key under `exported` in `summary.json`; only a `saved_model` becomes an MLflow model.
    others: further files by their formats; artifacts of the run.
    """

    path: Path
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    max_abs_diff: float
    record: Record = Record()
    format: str = "saved_model"
    others: Mapping[str, Path] = field(default_factory=dict)

    @property
    def implied_record(self) -> Record:
        return Record(models=(self,))
