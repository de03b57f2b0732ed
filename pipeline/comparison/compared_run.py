"""A run as it is compared: its settings, metrics, epochs and predictions, read from its folder."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipeline.config.keys import split_override
from pipeline.exit_codes import STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among
from pipeline.run_folder.runs import debug_kind, epoch_metrics, read_run
from pipeline.run_folder.summary import PRUNED, Summary, best_metric
from stages.evaluation.test_set import EXAMPLES, PIXELS, is_same_test_set
from stages.reuse import VALIDATED, VALIDATED_PIXELS
from stages.settings.places import regular_file

PREDICTIONS = "predictions.parquet"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class ComparedRun:
    """A run, or a job of a sweep that may have none, whose summary is empty then.

    number: from 1. status: that of the run; or `REFUSED` (its configuration), `SKIPPED` (left out), `DIED` (its process
    was killed), `NOT RUN`. reason: why it has not finished.
    settings: overrides, and of a run that is no job also the options of every group.
    """

    number: int
    folder: Path
    status: str
    settings: Mapping[str, str]
    summary: Summary
    reason: str | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.summary.metrics

    @property
    def has_finished(self) -> bool:
        """Whether it has the results of a whole training."""
        return self.status == "FINISHED" and self.pruned_after is None

    @property
    def pruned_after(self) -> int | None:
        """The epoch after which a search has ended it."""
        return self.summary.facts.get(PRUNED)

    @property
    def seed(self) -> str | None:
        drawn = self.summary.facts.get("seed")
        return self.settings.get("seed") or (None if drawn is None else str(drawn)) or self.setting("seed")

    @property
    def is_debug(self) -> bool:
        """Whether it only checked an experiment, so that its results count nowhere."""
        return debug_kind({**self.summary.choices, **self.settings}) is not None

    @property
    def monitor(self) -> str | None:
        """The metric by which its best epoch was chosen, such as `val/best_loss`."""
        return best_metric(str((self.summary.weights or {}).get("monitor", "")))

    @property
    def validated(self) -> tuple[str, str] | None:
        """Digest of the validation examples, and the kind and digest of their pixels; None: unknown."""
        facts = self.summary.facts
        return (facts[VALIDATED], facts.get(VALIDATED_PIXELS) or "") if facts.get(VALIDATED) else None

    def is_tested_as(self, other: "ComparedRun") -> bool:
        """Whether both were tested on the same examples, of the same pixels where their images are of one size."""
        facts = [{PIXELS: "", **run.summary.facts} for run in (self, other)]
        return all(EXAMPLES in one for one in facts) and is_same_test_set(*facts)

    def setting(self, name: str) -> str | None:
        """Return the value of a setting or option, also one that was not typed; None where it is not known."""
        value = self.settings.get(name, self.summary.choices.get(name))
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
        """Return for each test example whether it is classified correctly, bool [n]; None without predictions."""
        import pyarrow.parquet as pq  # most of a second to import

        try:  # `read_table` looks for a data set of many files first
            with pq.ParquetFile(regular_file(self.folder / PREDICTIONS)) as file:
                table = file.read(columns=["label", "predicted"], use_threads=False)
            labels, predicted = (np.from_dlpack(table[name].combine_chunks()) for name in ("label", "predicted"))
            return labels == predicted  # pyarrow's `to_numpy` would import pandas, which takes half a second
        except (OSError, ValueError, TypeError, KeyError):  # pyarrow's errors are these, and what is damaged can be any
            return None


def read_job(number: int, folder: Path, entry: Mapping[str, Any]) -> ComparedRun:
    """Return a job of a sweep.

    Args:
        folder: of its run, which need not exist. entry: of the sweep's index.
    """
    summary = read_run(folder)
    status = _status(summary.status if summary else None, entry)
    summary = replace(summary or Summary(None, status, "", str(folder), {}), overrides=list(entry["overrides"]))
    return ComparedRun(number, folder, status, _settings(summary), summary, summary.error or entry.get("reason"))


def read_finished(number: int, folder: Path, status: str) -> ComparedRun:
    """Return a run that stands by itself, with the options that it had."""
    summary = read_run(folder) or Summary(None, status, "", str(folder), {})
    choices = {name: option for name, option in summary.choices.items() if option is not None}
    settings = {**choices, **_settings(summary)}
    if summary.code:
        settings["code"] = summary.code[:8]  # runs of other code are no repetitions
    return ComparedRun(number, folder, status, settings, summary, summary.error)


def _settings(summary: Summary) -> dict[str, str]:
    parts = map(split_override, summary.overrides)
    return {name: _canonical(value) for name, value in parts if not is_among(name, WITHOUT_EFFECT)}


def _canonical(text: str) -> str:
    """Return one form of the values that are equal: `0.1` for `1e-1`, `[8,16]` for `[8, 16]`."""
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return re.sub(r"\s*([,:\[\]{}])\s*", r"\1", text.strip("'\""))


def _recorded(configuration: Mapping[str, Any], name: str) -> str | None:
    """Return a value of a recorded configuration by its dotted name; None where it has none of its own."""
    node: Any = configuration
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if node is None or isinstance(node, Mapping) or (isinstance(node, str) and "${" in node):
        return None
    return _canonical(node if isinstance(node, str) else json.dumps(node))


def _status(status: str | None, entry: Mapping[str, Any]) -> str:
    """Return the status of a job: that of its run, unless its process has ended without one."""
    exit_code = entry.get("exit_code")
    if entry.get("status") == "SKIPPED":
        return "SKIPPED"
    if status is not None and (status != "RUNNING" or exit_code is None):
        return status
    if exit_code in (TIMED_OUT, *STOPPED):
        return "KILLED"
    return {None: "NOT RUN", WRONG_CONFIGURATION: "REFUSED"}.get(exit_code, "DIED")
