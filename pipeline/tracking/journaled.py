"""The tracker of a run that is recorded in MLflow: into its journal first, from there to the store."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from pipeline.config import TrackingSettings
from pipeline.secrets import redact
from pipeline.tracking.journal import Journal
from pipeline.tracking.mlflow_run import MlflowRun
from pipeline.tracking.params import as_text
from pipeline.tracking.sender import Sender
from stages.results import Dataset, Exported


class JournaledTracker:
    """See `pipeline.tracking.tracker.Tracker`. What the journal of a continued run has is not recorded again."""

    def __init__(self, run: MlflowRun, journal: Journal, warn: Callable[[str], None]) -> None:
        self.run_id: str | None = run.run_id
        self._open_with, self._journal, self._warn = run.open_with, journal, warn
        self._params: dict[str, str] = {}
        self._metrics: set[tuple[str, int]] = set()
        self._datasets: set[str] = set()
        for entry in journal.entries:
            self._remember(entry.call, entry.given)
        self._sender = Sender(run, journal, warn)

    @classmethod
    def begin(
        cls,
        settings: TrackingSettings,
        outputs: Path,
        folder: Path,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        parent: str | None,
        warn: Callable[[str], None],
    ) -> "JournaledTracker":
        """Begins the run of `folder`, or goes on with it.

        Raises:
            UserError: where the store cannot be used.
        """
        journal = Journal(folder)
        if journal.run_id is not None:
            tracker = cls(MlflowRun.known(settings, outputs, folder, journal.run_id), journal, warn)
        else:
            run = MlflowRun.begin(settings, outputs, folder, experiment, name, tags, parent)
            uri = str(redact(settings.uri)) if settings.uri else None
            journal.begin({"run_id": run.run_id, "kind": settings.kind, "uri": uri, "outputs": str(outputs)})
            tracker = cls(run, journal, warn)
        tracker.status("RUNNING")
        if journal.entries:
            tracker._add("forget", names=["failed_stage", "error"])  # of the attempt before
        tracker.tags({**tags, **({MLFLOW_RUN_NOTE: tags["note"]} if "note" in tags else {})})
        return tracker

    @classmethod
    def reopen(
        cls, settings: TrackingSettings, outputs: Path, folder: Path, warn: Callable[[str], None]
    ) -> "JournaledTracker | None":
        """Returns the tracker of a run whose process has gone, to send what it has left; None where there is none.

        Raises:
            UserError: where the store cannot be used.
        """
        journal = Journal(folder)
        if journal.run_id is None:
            return None
        return cls(MlflowRun.known(settings, outputs, folder, journal.run_id), journal, warn)

    def params(self, values: Mapping[str, Any]) -> None:
        short, long = as_text(values)
        new = {name: text for name, text in short.items() if name not in self._params}
        changed = {name: text for name, text in short.items() if self._params.get(name, text) != text}
        if new:
            self._add("params", values=new)
        if changed:  # MLflow never changes a parameter
            self.tags({f"changed/{name}": text for name, text in changed.items()})
        for name, text in long.items():
            if name in new:
                self.text(text, f"long_params/{name}.txt")

    def tags(self, values: Mapping[str, str]) -> None:
        plain = redact({str(name): str(value) for name, value in values.items()})
        self._add("tags", values={name: text[:5000] for name, text in plain.items()})

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        named = {str(redact(name)): float(value) for name, value in values.items()}
        new = {name: value for name, value in named.items() if (name, step) not in self._metrics}
        if new:
            self._add("metrics", values=new, step=step, time=_now())

    def artifact(self, path: Path, folder: str = "") -> None:
        inside = path.is_relative_to(self._journal.folder)
        self._add("artifact", path=str(path.relative_to(self._journal.folder) if inside else path), folder=folder)

    def text(self, content: str, name: str) -> None:
        self._add("text", content=str(redact(content)), name=str(redact(name)))

    def dataset(self, dataset: Dataset) -> None:
        if dataset.fingerprint not in self._datasets:
            sizes = {name: len(split) for name, split in dataset.splits.items()}
            self._add("dataset", name=str(redact(dataset.name)), digest=dataset.fingerprint, sizes=sizes)

    def model(self, exported: Exported) -> None:
        folder, path = self._journal.folder, exported.path
        place = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
        names = list(exported.class_names)
        self._add("model", path=place, image_shape=list(exported.image_shape), class_names=names)

    def status(self, status: str) -> None:
        self._add("status", status=status, time=_now())

    def close(self, patience: float) -> int:
        self._sender.close(patience)
        left = self._journal.unsent
        if left:
            self._warn(
                f"tracking: {left} entries could not be sent ({self._sender.trouble}); they are kept in "
                f"{self._journal.folder}, and `python -m pipeline.sync` sends them"
            )
        return left

    def how_to_open(self) -> str:
        return self._open_with

    def _add(self, call: str, **given: Any) -> None:
        self._remember(call, given)
        try:
            self._journal.add(call, given)
        except OSError as error:
            self._warn(f"tracking: the journal cannot be written ({error}); what is not sent is lost when the run ends")
        self._sender.notify()

    def _remember(self, call: str, given: Mapping[str, Any]) -> None:
        match call:
            case "params":
                self._params |= given["values"]
            case "metrics":
                self._metrics |= {(name, given["step"]) for name in given["values"]}
            case "dataset":
                self._datasets.add(given["digest"])


def _now() -> int:
    return int(time.time() * 1000)
