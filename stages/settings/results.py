"""Settings of the stages `evaluate` and `export`."""

from dataclasses import dataclass

from stages.settings.ranges import number


@dataclass(kw_only=True)
class EvaluateSettings:
    """Loss, accuracy and a report by class on the test split."""

    _target_: str = "stages.evaluate.evaluate"
    batch_size: int = number(256, at_least=1, unit="examples of the global batch, over all replicas, at most")
    """Fewer where they would take more than 256 MiB; the metrics are the same."""
    predictions: bool = True
    """Writes predictions.parquet: label, predicted class and probabilities of each test example."""


@dataclass(kw_only=True)
class ExportSettings:
    """A SavedModel, compared after reloading."""

    _target_: str = "stages.export.export"
    compared_examples: int = number(256, at_least=1, unit="test examples on which the reloaded model is compared")
