"""Results of the stages: frozen dataclasses, each with a record for the runner."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stages.data.split import Split, check
from stages.features.kinds import IMAGES, Feature, facts_of
from stages.tasks.task import Task

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from stages.augmentations.mixing import Mixing


@dataclass(frozen=True)
class Record:
    """Everything that the runner records for a stage.

    The types below add a record that all results of the type share, as `implied_record`.

    params: facts that the stage has determined and not measured, under the stage's name; one with a slash
        (`data/height`) is a full name.
    metrics: numbers by their full name, such as `test/accuracy`; a one-element array or tensor counts as a number.
    files: artifacts, from the folder they are filed under to a file or directory on disk, or any iterable of them.
        Paths may be strings, and relative to the working directory or to the run's folder.
    weights: for `summary.json`, the epoch whose weights the result has (`epoch`, counted from 1), whether that is the
        `best` or the `last` (`selection`), by which metric it was chosen (`monitor`), and whether they are their
        exponential moving average (`ema`); None for a stage that does not train.
    summary: facts for `summary.json`: `replicas` and `precision` under these keys, all others under `facts`.
    datasets: inputs of the run; each fingerprint is recorded once.
    models: exported models, which are uploaded.
    on_exit: called when every stage has run.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    datasets: tuple[Dataset, ...] = ()
    models: tuple[Exported, ...] = ()
    on_exit: Callable[[], object] | None = None


def as_number(value: Any) -> float | None:
    """Returns a number, a one-element array or a one-element tensor as a float; None for everything else.

    Text is not a number, even where it spells one; nor is a complex number or an integer beyond the range of a float.
    """
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


@dataclass(frozen=True)
class Dataset:
    """Three disjoint splits, what is known of their features, and how images among these are augmented and mixed.

    task: what is predicted. features: of the splits, by name.
    fingerprint: 32 hexadecimal digits that change with any value, target or split.
    encoder: makes of raw features, [b, ...] by name, what the network takes: a tensor, or several by name. None: the
        network takes them as they are.
    normalization: of images, by the first layer of the network.
    augmentation: applied to each training image by itself; None: none.
    mixing: then applied to pairs of training images; None: none.
    augments_in_step: whether the training step applies `augmentation`, on its device; else the input does.
    is_shuffled: whether each epoch takes the training split in an order of its own; else in that of the split.
    reading: of a table, settings by which others are read alike, see `TableSettings.reading`; of texts their encoding.

    Raises:
        UserError: where a split is empty, its columns do not fit `features`, targets do not fit the task, or pixels are
            not finite or outside their range (as far as they are in memory).
    """

    name: str
    train: Split
    val: Split
    test: Split
    task: Task
    features: Mapping[str, Feature]
    fingerprint: str
    encoder: keras.Model | None = None
    normalization: Normalization = Normalization()
    augmentation: Augmentation | None = None
    mixing: Mixing | None = None
    augments_in_step: bool = False
    record: Record = Record()
    is_shuffled: bool = True
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "val": self.val, "test": self.test}

    def with_each_split(self, of: Callable[[Split], Split], **others: Any) -> Dataset:
        """Returns the data set with what `of` makes of each split; `others` are further fields."""
        return dataclasses.replace(self, train=of(self.train), val=of(self.val), test=of(self.test), **others)

    @property
    def images(self) -> Feature | None:
        """The feature of `Split.of_images`, where it is the only one."""
        only = len(self.features) == 1 and self.features.get(IMAGES)
        return only or None

    @property
    def unit(self) -> str:
        """Name of its examples: `images`, `texts`, `rows` of a table, or `examples`."""
        kinds = {feature.kind for feature in self.features.values()}
        units = {"images": {"image"}, "texts": {"text"}, "rows": {"number", "category", "text"}}
        return next((unit for unit, known in units.items() if kinds <= known), "examples")

    @property
    def implied_record(self) -> Record:
        sizes = {f"{name}_examples": len(split) for name, split in self.splits.items()}
        facts = {**self.task.facts, **facts_of(self.features), **sizes}
        params = {f"data/{name}": value for name, value in facts.items()}
        return Record(params, summary={"data": facts, "task": self.task.described, "unit": self.unit}, datasets=(self,))


@dataclass(frozen=True)
class Model:
    """A network from what a data set has, such as unscaled pixels, float32 [b, H, W, C], to float32 [b, outputs].

    task: what its outputs mean.
    policy: the Keras dtype policy that it was built under.
    rebuild: makes the same network on one device, with other weights; None where this one works everywhere.
    rebuild_in_float32: the same, in float32 whatever the policy; None for a model that cannot be built again.
    metrics: the network's own; their state must be sums, which replicas can add to.
    augmentation: applied by the training step before the network; None where the input applies it.
    trained_on: digests of the examples that its initial weights were trained on, where these are known.
    """

    network: keras.Model
    task: Task
    policy: str
    metrics: tuple[keras.metrics.Metric, ...] = ()
    rebuild: Callable[[], keras.Model] | None = None
    record: Record = Record()
    augmentation: Augmentation | None = None
    rebuild_in_float32: Callable[[], keras.Model] | None = None
    trained_on: np.ndarray | None = None

    @property
    def has_own_loss(self) -> bool:
        """Whether the network defines its own loss."""
        return bool(getattr(self.network, "has_own_loss", False))

    @property
    def implied_record(self) -> Record:
        return Record(summary={"precision": self.policy, "task": self.task.described})

    def on_one_device(self) -> Model:
        """Returns this model with its current weights on one device, where it can be evaluated and exported."""
        if self.rebuild is None:
            return self
        copy = self.rebuild()
        copy.set_weights(self.network.get_weights())
        return dataclasses.replace(self, network=copy, rebuild=None)

    @cached_property
    def in_float32(self) -> Model:
        """This model on one device, its network in float32, with the weights that it has now, at the first use."""
        if self.policy == "float32":
            return self.on_one_device()
        assert self.rebuild_in_float32 is not None, "a Model in another precision needs `rebuild_in_float32`"
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
    """metrics: of the task, by name."""

    loss: float
    metrics: Mapping[str, float]
    record: Record = Record()


@dataclass(frozen=True)
class Exported:
    """Files from unscaled pixels, [N, H, W, C], to probabilities; see `stages.exporters`.

    path: the SavedModel, else the first file.
    max_abs_diff: the largest difference between its probabilities, reloaded, and the model's.
    format: its key under `exported` in `summary.json`; only a `saved_model` becomes an MLflow model.
    others: further files by their formats; artifacts of the run.
    columns: of a model of columns, from its arguments to their dtypes, those of vectors with their length
        (`float64[5]`); empty for images.
    answers: the same of what it returns, of images too.
    license: of the model, by its identifier; None: not known.
    note: what files take that do not take the columns.
    """

    path: Path
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    max_abs_diff: float
    record: Record = Record()
    format: str = "saved_model"
    others: Mapping[str, Path] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    license: str | None = None
    note: str = ""

    @property
    def implied_record(self) -> Record:
        return Record(models=(self,))
