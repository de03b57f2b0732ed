"""Settings of the stages `evaluate` and `export`."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stages.errors import UserError
from stages.settings.ranges import check, choice, number, option, text
from stages.targets import target_of


@option("evaluate", "evaluate")
@dataclass(kw_only=True)
class EvaluateSettings:
    """Metrics on the test split with their intervals, by class and of calibration; the hardest mistakes."""

    _target_: str = "stages.evaluate.evaluate"
    batch_size: int | None = number(None, at_least=1, unit="examples of the global batch, over all replicas")
    """null: 256, or as many as take 256 MiB where that is fewer; the metrics are the same."""
    predictions: bool = True
    """Writes predictions.parquet: label, predicted class and probabilities of each test example."""
    confidence: float = number(0.95, above=0, below=1, unit="that an interval holds the metric")
    calibration_bins: int = number(15, at_least=1, at_most=1000, unit="bins of the calibration error, of equal width")
    mistakes: int = number(
        32, at_least=0, at_most=1000, unit="of the hardest mistakes in plots/mistakes.png; 0: no plot"
    )
    against: str | None = None
    """A run, by its folder or the beginning of its id, that was tested on the same examples, to compare with."""
    baseline: bool = True
    """Of tables and texts: compares with a standard model of scikit-learn's, fitted to the same split and columns."""
    importance: bool | None = None
    """Of columns: how much worse the network answers with the values of each permuted; null: where that takes seconds,
    of 2 to 100 columns without a text."""
    slices: list[str] = field(default_factory=list)
    """Columns of whose values, or fifths of a number, the metrics are told one by one, the worst first."""


@dataclass(kw_only=True)
class FormatSettings:
    """A format of export: its exporter, and how far its answers may be from the model's on real test examples."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages without which it cannot be written or reloaded."""
    extra: ClassVar[str] = ""
    """The project's extra with these packages."""

    _target_: str = "???"
    """A class that extends `stages.exporters.exporter.Exporter`."""
    largest_difference: float | None = number(None, at_least=0, at_most=1, unit="of a probability")
    """null: 0.0001 for a network that computes in float32 or float64, 0.05 in half precision."""
    least_agreement: float = number(0.995, at_least=0, at_most=1, unit="of the examples, with the same class")


@option("format", "saved_model")
@dataclass(kw_only=True)
class SavedModelSettings(FormatSettings):
    """TensorFlow's own format, with signatures for pixels and encoded images."""

    _target_: str = "stages.exporters.saved_model.SavedModel"


@option("format", "keras")
@dataclass(kw_only=True)
class KerasSettings(FormatSettings):
    """A `.keras` file of Keras' own layers."""

    _target_: str = "stages.exporters.keras_file.KerasFile"


@option("format", "litert")
@dataclass(kw_only=True)
class LiteRTSettings(FormatSettings):
    """A LiteRT (TensorFlow Lite) file."""

    _target_: str = "stages.exporters.litert.LiteRT"
    weights: str = choice("float32", "float32", "float16", "int8")
    """`int8`: activations, too, by the ranges that representative examples take."""
    representative_examples: int = number(200, at_least=1, at_most=10_000, unit="training examples, for int8")


@option("format", "onnx")
@dataclass(kw_only=True)
class OnnxSettings(FormatSettings):
    """An ONNX file."""

    requires: ClassVar[tuple[str, ...]] = ("tf2onnx", "onnx", "onnxruntime")
    extra: ClassVar[str] = "onnx"

    _target_: str = "stages.exporters.onnx_file.OnnxFile"
    opset: int = number(18, at_least=13, at_most=18, unit="version of ONNX's operators")


def schema_of(target: str) -> type[FormatSettings]:
    """Returns the settings of the exporter `target`: this project's, or those that every exporter has."""
    own = (SavedModelSettings, KerasSettings, LiteRTSettings, OnnxSettings)
    return next((schema for schema in own if schema._target_ == target), FormatSettings)


@option("export", "export")
@dataclass(kw_only=True)
class ExportSettings:
    """Formats of the trained model, each reloaded and compared with it."""

    _target_: str = "stages.export.export"
    formats: dict[str, Any] = field(default_factory=dict)
    """From names of files to exporters, each a mapping with `_target_`; empty: a SavedModel alone."""
    compared_examples: int = number(256, at_least=1, unit="test examples on which reloaded files are compared")
    reload: str = field(
        default_factory=lambda: os.environ.get("EXPORT_RELOAD", "process"), metadata={"options": ("process", "here")}
    )
    """`process`: files are reloaded in fresh processes that import nothing of this project, which takes some seconds;
    `here`: in the run's own."""
    reload_seconds: float = number(600.0, at_least=10, unit="seconds in which a file has to be reloaded and compared")
    license: str | None = text(None, r"[a-z0-9][a-z0-9.-]{0,63}", "an identifier in lower case", "apache-2.0")
    """Licence of the model in its card, by the Hub's identifier."""
    register: str | None = text(None, r"\w[\w .-]{0,199}", "letters, digits, spaces and _-., 200 at most", "mine")
    """A name in MLflow's registry, of which the model becomes a version."""
    alias: str | None = text(
        None, r"(?!latest$)(?!v\d+$)[\w-]{1,255}", "letters, digits and _-, neither latest nor v1, v2, …", "champion"
    )
    """An alias of that name, such as `champion`, which moves to the new version where `promote_if` holds."""
    promote_if: str = choice("better", "better", "higher", "always")
    """`better`: more accurate on the same test examples than the version that has the alias, by more than the
    interval of the difference; `higher`: by however little; `always`: without a comparison."""

    def check(self, path: str) -> None:
        for name, settings in self.formats.items():
            place = f"{path}.formats.{name}"
            target = target_of(settings)
            if not isinstance(target, str):
                raise UserError(
                    f"{place}={settings} names no exporter", "a mapping with `_target_`", "export=saved_model"
                )
            if isinstance(settings, Mapping):
                schema = schema_of(target)
                names = {entry.name for entry in dataclasses.fields(schema)}
                settings = schema(**{name: value for name, value in settings.items() if name in names})
            check(settings, place)
