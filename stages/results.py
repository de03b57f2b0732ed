"""Results of the stages: frozen dataclasses, each with a record for the runner."""

from __future__ import annotations

import dataclasses
import numbers
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.data.split import Split, check
from stages.features.images import ImageFeature
from stages.features.kinds import IMAGES, Schema
from stages.tasks.task import Task

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from stages.augmentations.transforms import Transform


@dataclass(frozen=True)
class Record:
    """Everything that the runner records for a stage.

    The classes below add facts that all results of the class share, through their property `implied_record`.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the stage has determined, recorded under the stage's name. A name with a slash, such as
    `data/height`, is recorded as it is."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers by their full name, such as `test/accuracy`. Arrays and tensors with one element count as numbers."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """Artifacts: from a folder of the artifacts to a file or directory on disk, or to several of them. Paths may be
    strings, relative to the working directory or to the run's folder."""
    weights: Mapping[str, Any] | None = None
    """The choice of the result's weights, for `summary.json`: `epoch`, counted from 1; `selection`, which is
    `best` or `last`; `monitor`, the metric; `ema`, whether they are an exponential moving average. None for a stage
    that does not train."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Facts for `summary.json`: `replicas` and `precision` under these keys, all others under `facts`."""
    datasets: tuple[Dataset, ...] = ()
    """Data sets that the run uses. Each fingerprint is recorded once."""
    models: tuple[Exported, ...] = ()
    """Exported models, which are uploaded to MLflow."""
    on_exit: Callable[[], object] | None = None
    """A function to call after all stages have run."""


def as_number(value: Any) -> float | None:
    """Return a number, a one-element array or a one-element tensor as a float; None for everything else.

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


@dataclass(frozen=True)
class Dataset:
    """Three disjoint splits, a description of their features, and the preprocessing of the training examples.

    Raises:
        UserError: If a split is empty, its columns do not fit `features`, targets do not fit the task, or pixels are
            not finite or outside their range (checked only for images in memory).
    """

    name: str
    train: Split
    val: Split
    test: Split
    task: Task
    """The prediction task: classes, labels or numbers."""
    features: Schema
    """The features of the splits, by name."""
    fingerprint: str
    """32 hexadecimal digits that change if any value, target or split changes."""
    encoder: keras.Model | None = None
    """Converts the raw features that are not images, [b, ...] by name, to inputs of the network, by name. None if there
    are none, or the network takes them raw."""
    scalings: Mapping[str, Normalization] = dataclasses.field(default_factory=dict)
    """The scaling of each feature that is images, by its name, applied by the first layers of the network. Others stay
    as they are."""
    transforms: tuple[Transform, ...] = ()
    """Random changes of the training examples, in order."""
    record: Record = Record()
    is_shuffled: bool = True
    """Whether each epoch has a different order of the training split."""
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings needed to read further files in the same way: for tables see `TableSettings.reading`, for texts their
    encoding."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "val": self.val, "test": self.test}

    def with_each_split(self, of: Callable[[Split], Split], **others: Any) -> Dataset:
        """Return the data set with each split replaced by `of(split)`. `others` are further fields to replace."""
        return dataclasses.replace(self, train=of(self.train), val=of(self.val), test=of(self.test), **others)

    @property
    def images(self) -> ImageFeature | None:
        """The feature of `Split.of_images` if it is the only feature, else None."""
        only = self.features.get(IMAGES) if len(self.features) == 1 else None
        return only if isinstance(only, ImageFeature) else None

    @property
    def combines_examples(self) -> bool:
        """Whether training examples are combined with others, such as by MixUp, and so their targets too."""
        return any(transform.combines for transform in self.transforms)

    @property
    def unit(self) -> str:
        """The name of the examples: `images`, `texts`, `rows` or `examples`."""
        units = {feature.unit for feature in self.features.values()}
        return units.pop() if len(units) == 1 else "rows" if units <= {"rows", "texts", "images"} else "examples"

    @property
    def implied_record(self) -> Record:
        sizes = {f"{name}_examples": len(split) for name, split in self.splits.items()}
        facts = {self.task.targets.plural: len(self.task.names), **_described(self.features), **sizes}
        params = {f"data/{name}": value for name, value in facts.items()}
        return Record(params, summary={"data": facts, "task": self.task.described, "unit": self.unit}, datasets=(self,))


def _described(schema: Schema) -> dict[str, int]:
    """Return facts to record: the size of images if there is nothing else, else the number of features of each kind."""
    only = next(iter(schema.values())) if len(schema) == 1 else None
    if isinstance(only, ImageFeature):
        return {"height": only.height, "width": only.width, "channels": only.channels}
    return {f"{kind}_features": count for kind, count in Counter(one.kind for one in schema.values()).items()}


@dataclass(frozen=True)
class Model:
    """A network that maps inputs, such as unscaled pixels, float32 [b, H, W, C], to outputs, float32 [b, outputs]."""

    network: keras.Model
    task: Task
    """Defines the meaning of the outputs."""
    policy: str
    """The Keras dtype policy that the network was built with."""
    metrics: tuple[keras.metrics.Metric, ...] = ()
    """Metrics that the network defines. Their state must consist of sums, because replicas add to it."""
    rebuild: Callable[[], keras.Model] | None = None
    """Builds the same network on one device, with different weights. None if this one works on any device."""
    record: Record = Record()
    transforms: tuple[Transform, ...] = ()
    """Transforms that the training step applies to its examples before the network."""
    rebuild_in_float32: Callable[[], keras.Model] | None = None
    """Like `rebuild`, but in float32 for every policy. None if the model cannot be built again."""
    trained_on: np.ndarray | None = None
    """Digests of the examples that the initial weights were trained on, if known."""
    tf32: bool = False
    """Whether its devices round the inputs of float32 convolutions and matrix products to TF32."""

    @property
    def has_own_loss(self) -> bool:
        """Whether the network defines its own loss."""
        return bool(getattr(self.network, "has_own_loss", False))

    @property
    def computes_in(self) -> str:
        """The Keras policy with as many digits: mixed_float16 for float32 in TF32, which has float16's mantissa."""
        return "mixed_float16" if self.tf32 and self.policy == "float32" else self.policy

    @property
    def implied_record(self) -> Record:
        return Record(summary={"precision": self.policy, "task": self.task.described})

    def on_one_device(self) -> Model:
        """Return this model with its current weights on one device, where it can be evaluated and exported."""
        if self.rebuild is None:
            return self
        copy = self.rebuild()
        copy.set_weights(self.network.get_weights())
        return dataclasses.replace(self, network=copy, rebuild=None)

    @cached_property
    def in_float32(self) -> Model:
        """This model in float32 on one device, with the weights that it has when this property is first used."""
        if self.policy == "float32":
            return self.on_one_device()
        assert self.rebuild_in_float32 is not None, "a Model in another precision needs `rebuild_in_float32`"
        copy = self.rebuild_in_float32()
        copy.set_weights([np.asarray(weight, np.float32) for weight in self.network.get_weights()])
        return dataclasses.replace(self, network=copy, policy="float32", rebuild=None)


@dataclass(frozen=True)
class Trained:
    """The model with its final weights."""

    model: Model
    history: tuple[Mapping[str, float], ...]
    """The metrics of each epoch, by name."""
    best_epoch: int
    """The number of the best epoch, counted from 1."""
    steps: int
    """The number of training steps."""
    record: Record = Record()


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating a model on the test split."""

    loss: float
    metrics: Mapping[str, float]
    """The metrics of the task, by name."""
    record: Record = Record()


@dataclass(frozen=True)
class Exported:
    """Exported files, which predict probabilities from unscaled pixels, [N, H, W, C]; see `stages.exporters`."""

    path: Path
    """The SavedModel, or the first file if there is none."""
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    max_abs_diff: float
    """The largest difference between the probabilities of the reloaded file and the model's."""
    record: Record = Record()
    format: str = "saved_model"
    """The key of the file under `exported` in `summary.json`. Only a `saved_model` becomes an MLflow model."""
    others: Mapping[str, Path] = field(default_factory=dict)
    """Further files by their formats, which are artifacts of the run."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For tables and texts: the dtypes of the model's arguments, by name. Vectors have a length, such as `float64[5]`,
    and encoded images are `image`. Empty for images alone."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """The dtypes of the model's outputs, by name."""
    license: str | None = None
    """The identifier of the model's license, if known."""
    note: str = ""
    """The input of those files that do not take the columns themselves."""

    @property
    def implied_record(self) -> Record:
        return Record(models=(self,))
