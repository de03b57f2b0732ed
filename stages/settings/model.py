"""Settings of the `model` stage: the network and its precision."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import II, MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stages.errors import UserError
from stages.settings.places import is_file_or_folder, is_folder, regular_file, resolved
from stages.settings.ranges import SCHEMAS, check, choice, nearest, number, option

POLICIES_OF_LAYERS = ("mixed_float16", "mixed_bfloat16", "float32")
"""Keras policies that a single layer may have, the numerically most delicate first."""


@option("precision", "precision")
@dataclass(kw_only=True)
class PrecisionSettings:
    """The dtypes of computations and of variables, as a Keras dtype policy."""

    policy: str = choice(
        "float32", "float32", "mixed", "mixed_float16", "mixed_bfloat16", "bfloat16", "float16", "float64"
    )
    """Keras dtype policy. `mixed`: mixed_float16 on GPUs with tensor cores (compute capability 7.0 and up), else
    mixed_bfloat16."""
    layers: dict[str, str] = field(default_factory=dict)
    """A mapping from patterns of layer names (`conv2d*`) to policies. The first pattern that matches a layer decides;
    all other layers use `policy`. Variables are float32 in each of these policies."""
    tf32: bool = False
    """Whether GPUs of compute capability 8.0 and up may round the inputs of float32 convolutions and matrix products to
    TF32, which has 10 bits of mantissa instead of 23: faster, but less precise. TensorFlow's own default is true."""

    def check(self, path: str) -> None:
        allowed = (*POLICIES_OF_LAYERS, "mixed")
        for policy in (self.policy, *self.layers.values()) if self.layers else ():
            if policy not in allowed:
                problem = f"{path}.layers does not support the policy {policy}, whose variables are not float32"
                raise UserError(problem, allowed, f"'{path}.layers={{conv2d*: mixed_bfloat16}}' {path}.policy=float32")

    @property
    def lowest(self) -> str:
        """The policy with the lowest precision in any layer; `mixed` if that depends on the devices."""
        policies = {self.policy, *self.layers.values()}
        return next((name for name in ("mixed_float16", "mixed", "mixed_bfloat16") if name in policies), self.policy)


@dataclass(kw_only=True)
class NetworkSettings:
    """Base of the settings of the project's networks."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Kinds of inputs. The network requires at least one of them; empty: it accepts any inputs."""

    returns_maps: ClassVar[bool] = False
    """Whether the network can return a map, such as a class for each pixel."""

    _target_: str = MISSING


@option("network", "auto")
@dataclass(kw_only=True)
class AutoSettings(NetworkSettings):
    """Convolutions for images and one text, a U-Net for masks, dense layers for everything else."""

    returns_maps: ClassVar[bool] = True
    _target_: str = "stages.networks.auto.auto"
    columns: str = choice("mlp", "mlp", "tabular")
    """Network for the columns of tables. The option `model=auto` chooses `tabular`; in runs of earlier versions it was
    `mlp`."""


@option("network", "mlp")
@dataclass(kw_only=True)
class MlpSettings(NetworkSettings):
    """Dense layers on flattened images, or on the columns of a table, with embeddings for categories."""

    _target_: str = "stages.networks.mlp.mlp"
    hidden: list[int] = number([256, 256], at_least=1, at_most=65536, unit="units in each hidden layer")
    dropout: float = number(0.0, at_least=0, below=1)


@option("network", "wide_and_deep")
@dataclass(kw_only=True)
class WideAndDeepSettings(MlpSettings):
    """Wide & Deep: an MLP plus a linear model."""

    _target_: str = "stages.networks.mlp.wide_and_deep"


@option("network", "tabular")
@dataclass(kw_only=True)
class TabularSettings(MlpSettings):
    """For tables: numbers are also encoded by bins, and several members share the dense layers."""

    _target_: str = "stages.networks.tabular.tabular"
    hidden: list[int] = number([256, 256, 256], at_least=1, at_most=65536, unit="units in each hidden layer")
    dropout: float | None = number(None, at_least=0, below=1)  # type: ignore[assignment]
    """Fraction of the units of each hidden layer that is dropped. null: 0.1 for fewer than 8,000 training examples,
    else 0."""
    members: int = number(8, at_least=1, at_most=1024, unit="members, whose predictions are averaged")


@option("network", "text_cnn")
@dataclass(kw_only=True)
class TextCnnSettings(NetworkSettings):
    """Convolutions over the words of texts, followed by max pooling over each text."""

    takes: ClassVar[tuple[str, ...]] = ("texts",)
    _target_: str = "stages.networks.texts.text_cnn"
    filters: int = number(128, at_least=1, at_most=65536, unit="filters per width, and size of the word embedding")
    widths: list[int] = number([3, 4, 5], at_least=1, at_most=1024, unit="words per filter")
    dropout: float = number(0.5, at_least=0, below=1)


@option("network", "transformer")
@dataclass(kw_only=True)
class TransformerSettings(NetworkSettings):
    """A transformer encoder over the words of texts, followed by average pooling."""

    takes: ClassVar[tuple[str, ...]] = ("texts",)
    _target_: str = "stages.networks.texts.transformer"
    width: int = number(64, at_least=1, at_most=65536, unit="size of the word embedding")
    blocks: int = number(2, at_least=1, at_most=1000, unit="blocks of attention and dense layers")
    dropout: float = number(0.1, at_least=0, below=1)


@option("network", "cnn")
@dataclass(kw_only=True)
class CnnSettings(NetworkSettings):
    """Convolutions and pooling, then dropout and one dense layer."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    _target_: str = "stages.networks.cnn.cnn"
    filters: list[int] = number([32, 64], at_least=1, at_most=65536, unit="filters in each convolution")
    kernel_size: int = number(3, at_least=1, at_most=1024, unit="pixels")
    dropout: float = number(0.5, at_least=0, below=1)


@option("network", "cnn_photo")
@dataclass(kw_only=True)
class CnnPhotoSettings(NetworkSettings):
    """Blocks of convolution, BatchNorm and ReLU, for photographs."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    _target_: str = "stages.networks.cnn.cnn_photo"
    filters: list[int] = number(
        [16, 32, 64, 128, 256], at_least=1, at_most=65536, unit="filters in each block's convolutions"
    )
    convolutions: int = number(2, at_least=1, at_most=100, unit="convolutions in each block")
    dropout: float = number(0.3, at_least=0, below=1)


@option("network", "resnet")
@dataclass(kw_only=True)
class ResnetSettings(NetworkSettings):
    """Residual blocks, for images of about 32×32 pixels."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    _target_: str = "stages.networks.cnn.resnet"
    blocks: int = number(3, at_least=1, at_most=1000, unit="residual blocks per group; 3 is ResNet-20, 9 is ResNet-56")
    filters: list[int] = number([16, 32, 64], at_least=1, at_most=65536, unit="filters in each group's convolutions")


@option("network", "unet")
@dataclass(kw_only=True)
class UnetSettings(NetworkSettings):
    """A U-Net, which returns a class for each pixel: levels of convolutions down to a low resolution, and up again."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    returns_maps: ClassVar[bool] = True
    _target_: str = "stages.networks.unet.unet"
    filters: list[int] = number([16, 32, 64, 128], at_least=1, at_most=65536, unit="filters in each level")
    dropout: float = number(0.0, at_least=0, below=1)


@option("network", "by_step")
@dataclass(kw_only=True)
class ByStepSettings(NetworkSettings):
    """For time series: dense layers that answer each next step, with the same weights for all steps; or once for a
    class."""

    takes: ClassVar[tuple[str, ...]] = ("windows",)
    _target_: str = "stages.networks.series.by_step"
    hidden: list[int] = number([128, 128], at_least=1, at_most=65536, unit="units in each hidden layer")
    dropout: float = number(0.1, at_least=0, below=1)
    members: int = number(4, at_least=1, at_most=1024, unit="members, whose predictions are averaged")


@option("network", "causal_cnn")
@dataclass(kw_only=True)
class CausalCnnSettings(NetworkSettings):
    """For time series: convolutions over the past steps, whose dilation doubles until they see the whole window."""

    takes: ClassVar[tuple[str, ...]] = ("windows",)
    _target_: str = "stages.networks.series.causal_cnn"
    filters: int = number(64, at_least=1, at_most=65536, unit="filters in each convolution")
    kernel_size: int = number(3, at_least=2, at_most=1024, unit="steps")
    dropout: float = number(0.1, at_least=0, below=1)


@option("network", "gru")
@dataclass(kw_only=True)
class GruSettings(NetworkSettings):
    """For time series: a GRU that reads the past steps one after another."""

    takes: ClassVar[tuple[str, ...]] = ("windows",)
    _target_: str = "stages.networks.series.gru"
    units: int = number(64, at_least=1, at_most=65536, unit="units of the GRU")
    dropout: float = number(0.1, at_least=0, below=1)


@option("network", "nbeats")
@dataclass(kw_only=True)
class NBeatsSettings(NetworkSettings):
    """For time series: residual blocks of dense layers, each of which explains a part of the past and of the next
    values."""

    takes: ClassVar[tuple[str, ...]] = ("windows",)
    _target_: str = "stages.networks.series.nbeats"
    hidden: list[int] = number([128, 128], at_least=1, at_most=65536, unit="units in each layer of a block")
    blocks: int = number(4, at_least=1, at_most=1000, unit="blocks")
    dropout: float = number(0.1, at_least=0, below=1)


@option("network", "application")
@dataclass(kw_only=True)
class ApplicationSettings(NetworkSettings):
    """A backbone from keras.applications, followed by pooling, dropout and one dense layer; for masks by a decoder."""

    takes: ClassVar[tuple[str, ...]] = ("images",)
    returns_maps: ClassVar[bool] = True
    _target_: str = "stages.networks.applications.application"
    name: str = "ResNet50"
    """Name of the class in keras.applications."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of the class, such as `alpha`."""
    dropout: float = number(0.2, at_least=0, below=1)
    decoder: list[int] = number([128, 64, 32, 16, 16], at_least=1, at_most=65536, unit="filters in each level")
    """For masks: the levels of the decoder, the lowest resolution first. Each has twice the resolution of the last."""


@option("network", "keras_hub")
@dataclass(kw_only=True)
class KerasHubSettings(NetworkSettings):
    """A backbone from KerasHub with its weights, followed by pooling, dropout and one dense layer."""

    requires: ClassVar[tuple[str, ...]] = ("keras_hub",)
    extra: ClassVar[str] = "hub"
    takes: ClassVar[tuple[str, ...]] = ("images", "texts")

    _target_: str = "stages.networks.keras_hub.keras_hub"
    preset: str = MISSING
    """Folder written by KerasHub's `save_to_preset`. Nothing is downloaded."""
    dropout: float = number(0.2, at_least=0, below=1)

    def check(self, path: str) -> None:
        folder = resolved(self.preset)
        is_there = is_folder(self.preset)
        weights = [*folder.glob("*.weights.h5"), *folder.glob("*.safetensors")] if is_there else []
        if not weights or not (folder / "config.json").is_file():
            expected = "a folder with config.json and weights, written by KerasHub's save_to_preset"
            raise UserError(
                f"{path}.preset={self.preset} is not a KerasHub preset", expected, f"{path}.preset=<folder>"
            )


FACTS = ("categories", "output_shape", "series", "table")
"""Parameters of a network's function that the stage `model` fills in, if the function has them."""


@option("model", "model")
@dataclass(kw_only=True)
class ModelSettings:
    """The function that builds the network, its settings, and the initial weights."""

    _target_: str = "stages.model.model"
    network: Any = MISSING
    """`_target_`: import path of a function `(input_shape, num_classes, **settings) -> keras.Model`. The other keys are
    its settings."""
    outputs: str = choice("logits", "logits", "probabilities")
    """Kind of values that the network returns. Set `probabilities` for your own network if its last layer is a
    softmax."""
    weights: str = "none"
    """Initial weights. `none`: random, drawn from the seed. `imagenet`: the keras.applications weights of the backbone.
    A file (`.h5`, `.weights.h5`) or an exported SavedModel: weights of the network or of its backbone. `runs:/<run id>`
    or `models:/…`: weights of a tracked run or of a model in MLflow."""
    frozen: bool = False
    """Whether the layer named `backbone` is frozen: its weights stay unchanged, and it runs in inference mode during
    training."""
    task: Any = II("task")
    precision: PrecisionSettings = II("precision")
    seed: int = II("seed")
    encoders: dict[str, Any] = field(default_factory=dict)
    """For images and texts among other columns: a mapping from columns to the network that turns each into a vector.
    A network is a name, such as `cnn_photo`, or a mapping with `_target_`, as `network`. Images without one have
    `cnn_photo` from 64 pixels on, and `cnn` if they are smaller; words of texts have embeddings in `network`. A network
    of your own gets images without an encoder as they are."""
    encoder_width: int = number(64, at_least=1, at_most=65536, unit="numbers for each image or text with an encoder")

    @property
    def is_tracked(self) -> bool:
        """Whether the weights are in MLflow."""
        return self.weights.startswith(("runs:/", "models:/"))

    def check(self, path: str) -> None:
        if not isinstance(self.network, Mapping) and not is_dataclass(self.network):
            raise UserError(
                f"{path}.network={self.network} is not a network",
                "a mapping with the `_target_` of a function (input_shape, num_classes, **settings) -> keras.Model",
                f"'{path}.network={{_target_: stages.networks.cnn.cnn}}'",
            )
        for column, value in self.encoders.items():
            encoder_settings(f"{path}.encoders.{column}", value)
        if self.weights not in ("none", "imagenet") and not self.is_tracked:
            _check_weights(f"{path}.weights", self.weights)


def encoder_settings(setting: str, value: Any) -> Any:
    """Return the settings of an encoder: of one of the project's networks, with its defaults, or a mapping.

    Args:
        setting: The dotted name of the setting, for errors.
        value: A name of a network, or a mapping with the `_target_` of a function.

    Raises:
        UserError: If there is no such network, or it does not have such settings.
    """
    networks: dict[str, Any] = {**SCHEMAS["network"]}
    schemas = {name: schema for name, schema in networks.items() if schema._target_ not in OTHERS}
    if isinstance(value, NetworkSettings):
        return value
    if isinstance(value, str):
        if value not in schemas:
            similar = nearest(value, [*schemas]) or "cnn_photo"
            raise UserError(f"{setting}={value} is not a network", [*schemas], f"{setting}={similar}")
        return encoder_settings(setting, {"_target_": schemas[value]._target_})
    target = value.get("_target_") if isinstance(value, Mapping) else None
    if not target:
        expected = "a network, or a mapping with the `_target_` of a function (input_shape, outputs, **settings)"
        raise UserError(f"{setting}={value} is not a network", expected, f"{setting}=cnn_photo")
    schema = next((schema for schema in networks.values() if schema._target_ == target), None)
    if schema is None:
        return value
    if schema not in schemas.values():
        raise UserError(f"{setting}: {target} does not return a vector", [*schemas], f"{setting}=cnn_photo")
    try:
        settings: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(value)))
    except OmegaConfBaseException as error:
        known = [entry.name for entry in fields(schema) if entry.name != "_target_"]
        raise UserError(f"{setting}={value} does not fit {target} ({error.msg or error})", known) from error
    check(settings, setting)
    return settings


OTHERS = ("stages.networks.auto.auto", "stages.networks.tabular.tabular", "stages.networks.unet.unet")
"""Networks that cannot be encoders: they choose another one, or return several vectors, or a map."""

SIGNATURES = {".h5": b"\x89HDF", ".keras": b"PK"}
"""First bytes of files with weights, by suffix."""


def _check_weights(setting: str, text: str) -> None:
    """Refuse a path without weights before TensorFlow starts; for the folder of a run, name the weights in it."""
    path = Path(resolved(text))
    if not is_folder(text):
        with suppress(OSError):
            signature = SIGNATURES.get(path.suffix)
            if signature is not None and regular_file(path).open("rb").read(len(signature)) == signature:
                return
    elif any(is_file_or_folder(f"{path}/{name}") for name in ("saved_model.pb", "tf2model/saved_model.pb")):
        return
    inside = [f"{text}/{name}" for name in ("export/saved_model", "checkpoints/best.weights.h5")]
    names = [name for name in inside if is_file_or_folder(name) and re.fullmatch(r"[\w./~+-]+", name)]
    raise UserError(
        f"{setting}={text} is not a file or folder with weights",
        "none, imagenet, a file (.h5, .weights.h5, .keras), a SavedModel, runs:/<run id>, models:/<name>/<version>",
        f"{setting}={(names or ['<a file>'])[0]}",
    )
