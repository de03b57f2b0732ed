"""A run as it is compared: its settings, metrics, epochs and predictions, read from its folder."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipeline.config.keys import split_override
from pipeline.exit_codes import STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among
from pipeline.run_folder.runs import debug_kind, epoch_metrics
from pipeline.run_folder.summary import NAME, PRUNED, best_metric
from stages.reuse import VALIDATED, VALIDATED_PIXELS
from stages.settings.places import regular_file

PREDICTIONS = "predictions.parquet"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class ComparedRun:
    """A run, or a job of a sweep that may have none.

    number: from 1. status: that of the run; or `REFUSED` (its configuration), `SKIPPED` (left out), `DIED` (its process
    was killed), `NOT RUN`. reason: why it has not finished.
    settings: overrides, and of a run that is no job also the options of every group; choices: those options.
    devices: TensorFlow's names. monitor: the metric by which its best epoch was chosen, such as `val/best_loss`.
    test_set: digests of the test examples and of their pixels, where it has been evaluated.
    validated: digest of the validation examples, and the kind and digest of their pixels; None: unknown.
    validation_examples: their number; None: unknown.
    default_seed: the seed where none was typed. overrides: as typed, so that they run it again.
    """

    number: int
    folder: Path
    status: str
    settings: Mapping[str, str]
    choices: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    replicas: int = 1
    devices: tuple[str, ...] = ()
    monitor: str | None = None
    test_set: tuple[str, str] | None = None
    reason: str | None = None
    default_seed: str | None = None
    validated: tuple[str, str] | None = None
    validation_examples: int | None = None
    overrides: tuple[str, ...] = ()
    pruned_after: int | None = None  # the epoch after which a search has ended it

    @property
    def has_finished(self) -> bool:
        """Whether it has the results of a whole training."""
        return self.status == "FINISHED" and self.pruned_after is None

    @property
    def seed(self) -> str | None:
        return self.settings.get("seed") or self.default_seed or self.setting("seed")

    @property
    def is_debug(self) -> bool:
        """Whether it only checked an experiment, so that its results count nowhere."""
        return debug_kind({**self.choices, **self.settings}) is not None

    def setting(self, name: str) -> str | None:
        """Returns the value of a setting or option, also one that was not typed; None where it is not known."""
        value = self.settings.get(name, self.choices.get(name))
        return _recorded(self._configuration, name) if value is None else value

    @cached_property
    def _configuration(self) -> Mapping[str, Any]:
        try:
            document = yaml.load(regular_file(self.folder / "config.yaml").read_bytes(), _Loader)
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return document if isinstance(document, Mapping) else {}

    @cached_property
    def history(self) -> dict[int, dict[str, float]]:
        """The metrics of each epoch, from 1."""
        return epoch_metrics(self.folder)

    def correct(self) -> np.ndarray | None:
        """Returns for each test example whether it is classified correctly, bool [n]; None without predictions."""
        import pyarrow.parquet as pq  # most of a second to import

        try:  # `read_table` looks for a data set of many files first
            with pq.ParquetFile(regular_file(self.folder / PREDICTIONS)) as file:
                table = file.read(columns=["label", "predicted"], use_threads=False)
            labels, predicted = (np.from_dlpack(table[name].combine_chunks()) for name in ("label", "predicted"))
            return labels == predicted  # pyarrow's `to_numpy` would import pandas, which takes half a second
        except (OSError, ValueError, TypeError, KeyError):  # pyarrow's errors are these, and what is damaged can be any
            return None


def read_job(number: int, folder: Path, entry: Mapping[str, Any]) -> ComparedRun:
    """Returns a job of a sweep.

    Args:
        folder: of its run, which need not exist. entry: of the sweep's index.
    """
    summary = _summary(folder)
    status = _status(summary.get("status"), entry)
    run = _compared(number, folder, status, _settings(entry["overrides"]), summary)
    reason = run.reason or entry.get("reason")
    return replace(run, reason=None if reason is None else str(reason), overrides=tuple(entry["overrides"]))


def read_finished(number: int, folder: Path, status: str) -> ComparedRun:
    """Returns a run that stands by itself, with the options that it had."""
    summary = _summary(folder)
    choices = {name: str(option) for name, option in (summary.get("choices") or {}).items() if option is not None}
    settings = {**choices, **_settings(summary.get("overrides") or ())}
    if summary.get("code"):
        settings["code"] = str(summary["code"])[:8]  # runs of other code are no repetitions
    return _compared(number, folder, status, settings, summary)


def _compared(
    number: int, folder: Path, status: str, settings: dict[str, str], summary: Mapping[str, Any]
) -> ComparedRun:
    metrics = {name: math.nan if value is None else float(value) for name, value in summary.get("metrics", {}).items()}
    monitor = str((summary.get("weights") or {}).get("monitor", ""))
    facts = summary.get("facts") or {}
    examples = facts.get("test_examples")
    return ComparedRun(
        number,
        folder,
        status,
        settings,
        {name: str(option) for name, option in (summary.get("choices") or {}).items() if option is not None},
        metrics,
        float(summary.get("seconds") or 0.0),
        int(summary.get("replicas") or 1),
        tuple(str(device) for device in facts.get("devices") or ()),
        best_metric(monitor),
        (str(examples), str(facts.get("test_pixels") or "")) if examples else None,
        summary.get("error"),
        None if facts.get("seed") is None else str(facts["seed"]),
        (str(facts[VALIDATED]), str(facts.get(VALIDATED_PIXELS) or "")) if facts.get(VALIDATED) else None,
        (facts.get("data") or {}).get("val_examples"),
        tuple(summary.get("overrides") or ()),
        facts.get(PRUNED),
    )


def _settings(overrides: Sequence[str]) -> dict[str, str]:
    parts = map(split_override, overrides)
    return {name: _canonical(value) for name, value in parts if not is_among(name, WITHOUT_EFFECT)}


def _canonical(text: str) -> str:
    """Returns one form of the values that are equal: `0.1` for `1e-1`, `[8,16]` for `[8, 16]`."""
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return re.sub(r"\s*([,:\[\]{}])\s*", r"\1", text.strip("'\""))


def _recorded(configuration: Mapping[str, Any], name: str) -> str | None:
    """Returns a value of a recorded configuration by its dotted name; None where it has none of its own."""
    node: Any = configuration
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if node is None or isinstance(node, Mapping) or (isinstance(node, str) and "${" in node):
        return None
    return _canonical(node if isinstance(node, str) else json.dumps(node))


def _status(status: str | None, entry: Mapping[str, Any]) -> str:
    """Returns the status of a job: that of its run, unless its process has ended without one."""
    exit_code = entry.get("exit_code")
    if entry.get("status") == "SKIPPED":
        return "SKIPPED"
    if status is not None and (status != "RUNNING" or exit_code is None):
        return status
    if exit_code in (TIMED_OUT, *STOPPED):
        return "KILLED"
    return {None: "NOT RUN", WRONG_CONFIGURATION: "REFUSED"}.get(exit_code, "DIED")


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(regular_file(folder / NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
