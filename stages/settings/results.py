"""Settings of the stages `evaluate` and `export`."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stages.errors import UserError
from stages.settings.ranges import check, choice, number, option, text
from stages.targets import target_of

BOOSTING = ("sklearn", "lightgbm", "catboost")
"""Packages for gradient boosting as a baseline."""


@option("evaluate", "evaluate")
@dataclass(kw_only=True)
class EvaluateSettings:
    """Metrics on the test split with their confidence intervals, also per class, calibration, and the worst
    mistakes."""

    _target_: str = "stages.evaluate.evaluate"
    batch_size: int | None = number(None, at_least=1, unit="examples per global batch, over all replicas")
    """Global batch size of the evaluation. null: 256, or fewer if they would take more than 256 MiB. The metrics do not
    depend on it."""
    predictions: bool = True
    """Whether to write predictions.parquet, with the label, predicted class and probabilities of each test example."""
    confidence: float = number(0.95, above=0, below=1, unit="probability that an interval contains the metric")
    """Confidence level of the intervals."""
    calibration_bins: int = number(15, at_least=1, at_most=1000, unit="bins of equal width")
    """Number of bins for the calibration error."""
    mistakes: int = number(32, at_least=0, at_most=1000, unit="images; 0: no plot")
    """Number of mistakes to show in plots/mistakes.png, the worst first. 0: no plot."""
    against: str | None = None
    """A run to compare with, given by its folder or the first characters of its id. It must have been tested on the
    same examples."""
    baseline: Any = True
    """Standard model to compare with, for tables and texts. `true`: scikit-learn's histogram gradient boosting, or a
    linear model if some columns are texts. `lightgbm` or `catboost`: boosting by that package (extra `boosting`).
    `false`: none. It is fitted to the training split, and the number of trees is chosen on the validation split."""
    importance: bool | None = None
    """Whether to measure the permutation importance of columns: how much worse the predictions become when the values
    of a column are permuted. null: only if that takes seconds, for 2 to 100 columns without a text."""
    slices: list[str] = field(default_factory=list)
    """Columns to evaluate separately: the metrics for each value of a category, or for each fifth of the examples for a
    number, the worst first."""

    @property
    def boosting(self) -> str | None:
        """The package for boosting as a baseline; None without a baseline."""
        return ("sklearn" if self.baseline is True else str(self.baseline)) if self.baseline else None

    def check(self, path: str) -> None:
        if not isinstance(self.baseline, bool) and self.baseline not in BOOSTING:
            raise UserError(
                f"{path}.baseline={self.baseline} is not known", ["true", "false", *BOOSTING], f"{path}.baseline=true"
            )


@dataclass(kw_only=True)
class FormatSettings:
    """An export format: its exporter, and how far the exported predictions may differ on real test examples."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages that are required to write and reload it."""
    extra: ClassVar[str] = ""
    """The project's pip extra with these packages."""

    _target_: str = "???"
    """Import path of a class that extends `stages.exporters.exporter.Exporter`."""
    largest_difference: float | None = number(None, at_least=0, at_most=1, unit="difference of probabilities")
    """Largest difference allowed between the probabilities of the exported model and of the trained one. null: 0.0001
    for a network that computes in float32 or float64, 0.05 for half precision."""
    least_agreement: float = number(0.995, at_least=0, at_most=1, unit="fraction of the examples")
    """Smallest fraction of the examples for which both models must predict the same class."""


@option("format", "saved_model")
@dataclass(kw_only=True)
class SavedModelSettings(FormatSettings):
    """TensorFlow's own format, with signatures for pixels and encoded images."""

    _target_: str = "stages.exporters.saved_model.SavedModel"


@option("format", "keras")
@dataclass(kw_only=True)
class KerasSettings(FormatSettings):
    """A `.keras` file that contains only layers of Keras itself."""

    _target_: str = "stages.exporters.keras_file.KerasFile"


@option("format", "litert")
@dataclass(kw_only=True)
class LiteRTSettings(FormatSettings):
    """A LiteRT (TensorFlow Lite) file."""

    _target_: str = "stages.exporters.litert.LiteRT"
    weights: str = choice("float32", "float32", "float16", "int8")
    """Type of the weights. `int8`: for images and texts, activations are quantized too, to the ranges that
    representative examples produce."""
    representative_examples: int = number(200, at_least=1, at_most=10_000, unit="training examples")
    """Number of training examples from which `int8` measures the ranges of the activations."""


@option("format", "onnx")
@dataclass(kw_only=True)
class OnnxSettings(FormatSettings):
    """An ONNX file."""

    requires: ClassVar[tuple[str, ...]] = ("tf2onnx", "onnx", "onnxruntime")
    extra: ClassVar[str] = "onnx"

    _target_: str = "stages.exporters.onnx_file.OnnxFile"
    opset: int = number(18, at_least=13, at_most=18, unit="opset version of ONNX")


def schema_of(target: str) -> type[FormatSettings]:
    """Return the schema for the exporter `target`; custom exporters have the base schema."""
    schemas = (SavedModelSettings, KerasSettings, LiteRTSettings, OnnxSettings)
    return next((schema for schema in schemas if schema._target_ == target), FormatSettings)


@option("export", "export")
@dataclass(kw_only=True)
class ExportSettings:
    """Export of the trained model. Each exported file is reloaded and compared with the model."""

    _target_: str = "stages.export.export"
    formats: dict[str, Any] = field(default_factory=dict)
    """A mapping from file names to exporters, which are mappings with `_target_`. Empty: only a SavedModel."""
    compared_examples: int = number(256, at_least=1, unit="test examples")
    """Number of test examples on which the exported files are compared with the model."""
    reload: str = field(
        default_factory=lambda: os.environ.get("EXPORT_RELOAD", "process"), metadata={"options": ("process", "here")}
    )
    """Process in which the exported files are reloaded. `process`: new processes that import nothing from this project,
    which takes a few seconds. `here`: the process of the run."""
    reload_seconds: float = number(600.0, at_least=10, unit="seconds per file")
    """Timeout for reloading an exported file and comparing it, in seconds."""
    license: str | None = text(None, r"[a-z0-9][a-z0-9.-]{0,63}", "a license identifier in lower case", "apache-2.0")
    """License of the model for its model card, as an identifier of the Hugging Face Hub."""
    register: str | None = text(None, r"\w[\w .-]{0,199}", "at most 200 letters, digits, spaces and _-.", "mine")
    """Name in MLflow's model registry. The model becomes a new version of it."""
    alias: str | None = text(
        None, r"(?!latest$)(?!v\d+$)[\w-]{1,255}", "letters, digits and _-, but not latest, v1, v2, …", "champion"
    )
    """Alias in the registry, such as `champion`. It moves to the new version if `promote_if` allows it."""
    promote_if: str = choice("better", "better", "higher", "always")
    """Condition for moving the alias. `better`: the new version is more accurate than the version with the alias on the
    same test examples, and the confidence interval of the difference excludes 0. `higher`: it is more accurate by any
    amount. `always`: without a comparison."""

    def check(self, path: str) -> None:
        for name, settings in self.formats.items():
            place = f"{path}.formats.{name}"
            target = target_of(settings)
            if not isinstance(target, str):
                raise UserError(
                    f"{place}={settings} does not name an exporter", "a mapping with `_target_`", "export=saved_model"
                )
            if isinstance(settings, Mapping):
                schema = schema_of(target)
                names = {entry.name for entry in dataclasses.fields(schema)}
                settings = schema(**{name: value for name, value in settings.items() if name in names})
            check(settings, place)
