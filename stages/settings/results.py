"""Settings of the stages `evaluate` and `export`."""

from dataclasses import dataclass

from stages.settings.ranges import number


@dataclass(kw_only=True)
class EvaluateSettings:
    """Metrics on the test split with their intervals, by class and of calibration; the hardest mistakes; timing."""

    _target_: str = "stages.evaluate.evaluate"
    batch_size: int = number(256, at_least=1, unit="examples of the global batch, over all replicas, at most")
    """Fewer where they would take more than 256 MiB; the metrics are the same."""
    predictions: bool = True
    """Writes predictions.parquet: label, predicted class and probabilities of each test example."""
    confidence: float = number(0.95, above=0, below=1, unit="that an interval holds the metric")
    resamples: int = number(1000, at_least=0, unit="bootstrap resamples of the test examples; 0: no intervals")
    calibration_bins: int = number(15, at_least=1, at_most=1000, unit="bins of the calibration error, of equal width")
    mistakes: int = number(
        32, at_least=0, at_most=1000, unit="of the hardest mistakes in plots/mistakes.png; 0: no plot"
    )
    timing: bool = True
    """Measures the latency of one example and the throughput of a batch."""
    against: str | None = None
    """A run, by its folder or the beginning of its id, that was tested on the same examples, to compare with."""


@dataclass(kw_only=True)
class ExportSettings:
    """A SavedModel, compared after reloading."""

    _target_: str = "stages.export.export"
    compared_examples: int = number(256, at_least=1, unit="test examples on which the reloaded model is compared")
