"""Facts about a run that its stages report: the field `facts` of `summary.json`, typed."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.records import OpenRecord, convert, known_types


@dataclass(kw_only=True)
class TaskFacts(OpenRecord):
    """The task of a model, as `stages.tasks.task` describes it. The defaults apply before a run has begun."""

    primary: str = "accuracy"
    """The metric that compares models of the task."""
    metrics: list[str] = field(default_factory=lambda: ["accuracy"])
    higher_is_better: list[str] = field(default_factory=lambda: ["accuracy"])


@dataclass(kw_only=True)
class DataFacts(OpenRecord):
    """The sizes of a data set. A number is None if it does not apply, such as the height of texts."""

    train_examples: int = 0
    val_examples: int = 0
    test_examples: int = 0
    classes: int | None = None
    labels: int | None = None
    targets: int | None = None
    """Number of values that are predicted per example."""
    height: int | None = None
    width: int | None = None
    channels: int | None = None
    number_features: int | None = None
    date_features: int | None = None
    category_features: int | None = None
    text_features: int | None = None
    image_features: int | None = None
    vector_features: int | None = None
    window_features: int | None = None
    calendar_features: int | None = None

    @property
    def columns(self) -> dict[str, int]:
        """The number of features of each kind; empty if the data set has only images."""
        end = "_features"
        return {name.removesuffix(end): count for name, count in vars(self).items() if name.endswith(end) and count}


@dataclass(kw_only=True)
class Facts(OpenRecord):
    """Facts about a run. An unknown fact is None or empty, and is left out of the file.

    Stages report facts under these names; see `stages.results.Record.summary`. `others` has facts with other names.
    """

    seed: int | None = None
    fingerprint: str | None = None
    """The fingerprint of the data that the run loaded."""
    task: TaskFacts | None = None
    data: DataFacts | None = None
    unit: str | None = None
    """The name of the examples: `images`, `texts`, `rows` or `examples`."""
    val_examples: str | None = None
    """A digest of the examples that chose the best epoch."""
    val_pixels: str | None = None
    """The kind of their images, and a digest of all their pixels."""
    val_loss: dict[str, Any] | None = None
    """The settings of the loss, unless it is the default of the task."""
    test_examples: str | None = None
    """A digest of the test examples."""
    test_pixels: str | None = None
    known_test_images: int | None = None
    """Number of test examples that a reused model was trained on."""
    confidence: float | None = None
    intervals: dict[str, list[float | None] | None] = field(default_factory=dict)
    """The confidence intervals of metrics, by their full names."""
    verdicts: list[str] = field(default_factory=list)
    """Sentences that compare the model with baselines."""
    custom_metrics: dict[str, list[str]] = field(default_factory=dict)
    """The names of the metrics that each custom stage has recorded."""
    pruned_after_epoch: int | None = None
    """The last epoch of a trial that a search has ended early."""
    tested_in: Path | None = None
    """For a job of a sweep, the folder of the run that tested it, if that is a different run."""

    def as_mapping(self) -> dict[str, Any]:
        empty = [name for name in known_types(Facts) if getattr(self, name) in ([], {})]
        return {name: value for name, value in super().as_mapping().items() if name not in empty}

    def add(self, values: Mapping[str, Any]) -> None:
        """Add the facts that a stage has reported.

        Raises:
            ValueError: If a fact that this class declares has a value of the wrong type.
        """
        kinds = known_types(Facts)
        for name, value in values.items():
            if name in kinds:
                of_json = json.loads(json.dumps(plain(value), default=str))
                setattr(self, name, convert(of_json, kinds[name], f"Record.summary[{name!r}]"))
            else:
                self.others[name] = value

    def completed(self, other: "Facts") -> "Facts":
        """Return these facts. Facts that are unknown here are taken from `other`."""
        names = [entry.name for entry in dataclasses.fields(self) if entry.name != "others"]
        known = {name: value for name in names if (value := getattr(self, name)) not in (None, [], {})}
        return dataclasses.replace(other, **known, others=other.others | self.others)


def plain(value: Any) -> Any:
    """Return a value that JSON can represent: dataclasses become mappings, paths texts, NaN and infinity null."""
    if isinstance(value, OpenRecord):
        return plain(value.as_mapping())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
