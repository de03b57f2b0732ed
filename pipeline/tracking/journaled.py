"""The tracker of a run that is recorded in MLflow: into its journal first, from there to the store."""

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from pipeline.config.schemas import MLFLOW_RUN
from pipeline.paths import shorter
from pipeline.redaction import redact
from pipeline.tracking.journal import NAME, Journal
from pipeline.tracking.params import as_text
from pipeline.tracking.sender import Sender
from pipeline.tracking.stored_run import StoredRun
from pipeline.tracking.tracker import SYSTEM, Patience, RunSpec, Tracker
from stages.errors import UserError
from stages.results import Dataset, Exported
from stages.targets import class_at


class JournaledTracker(Tracker):
    """Records into the journal first, from there to the store. A resumed run repeats nothing that its journal has."""

    def __init__(self, spec: RunSpec, warn: Callable[[str], None]) -> None:
        """Opens the run of `spec`; one that the store has lost is filled again from its journal.

        Raises:
            UserError: where the store cannot be used.
        """
        self._journal = Journal(spec.folder)
        self._warn = warn
        self._params: dict[str, str] = {}
        self._metrics: set[tuple[str, int]] = set()
        self._datasets: set[str] = set()
        self._latest = 0  # the latest time that was recorded, in milliseconds
        store = class_at(spec.settings._target_, StoredRun, "tracking", f"tracking._target_={MLFLOW_RUN}")
        try:
            self._run = store(spec, self._journal.run_id)
            self._agree()
        except store.errors as error:
            raise _unusable(spec, error) from error
        for entry in self._journal.entries:
            self._remember(entry.call, entry.arguments)
        self._sender = Sender(self._run, self._journal, self._note_run, warn)

    def begin(self) -> None:
        """Makes the run RUNNING, with the tags of its `spec`."""
        is_resumed = bool(self._journal.entries)
        self.status("RUNNING")
        if is_resumed:
            self._add("forget", names=["failed_stage", "error"])  # of the attempt before
        self.tags(self._run.spec.tags)

    @property
    def run_id(self) -> str | None:
        """Of the run in the store; another one where the store has lost the first."""
        return self._run.run_id

    @property
    def recorded_status(self) -> str | None:
        """The last status that was recorded."""
        return self._journal.status

    @property
    def entries(self) -> int:
        """The number of entries that the run has."""
        return len(self._journal.entries)

    @property
    def unsent(self) -> int:
        """The number of entries that the store does not have yet."""
        return self._journal.unsent

    @property
    def trouble(self) -> str | None:
        """The reason for which the store takes nothing at the moment; None where it does."""
        return self._sender.trouble

    @property
    def no_room(self) -> UserError | None:
        return self._sender.full if self._journal.unsent else None

    @property
    def refused(self) -> list[str]:
        """Entries that the store refuses for good, and why."""
        return list(self._journal.refused.values())

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

    def metrics(self, values: Mapping[str, float], step: int = 0, time: int | None = None) -> None:
        named = {str(redact(name)): float(value) for name, value in values.items()}
        new = {name: value for name, value in named.items() if (name, step) not in self._metrics}
        if new:
            self._add("metrics", values=new, step=step, time=self._now() if time is None else time)

    @property
    def has_scores(self) -> bool:
        return any(not name.startswith(SYSTEM) for name, _ in tuple(self._metrics))

    def next_step(self, name: str) -> int:
        return 1 + max((step for metric, step in tuple(self._metrics) if metric == name), default=-1)

    def artifact(self, path: Path, folder: str = "") -> None:
        self._add("artifact", path=self._place(path), folder=folder)

    def text(self, content: str, name: str) -> None:
        self._add("text", content=str(redact(content)), name=str(redact(name)))

    def dataset(self, dataset: Dataset) -> None:
        if dataset.fingerprint not in self._datasets:
            sizes = {name: len(split) for name, split in dataset.splits.items()}
            self._add("dataset", name=str(redact(dataset.name)), digest=dataset.fingerprint, sizes=sizes)

    def model(self, exported: Exported) -> None:
        names = list(exported.class_names)
        self._add("model", path=self._place(exported.path), image_shape=list(exported.image_shape), class_names=names)

    def _place(self, path: Path) -> str:
        folder = self._journal.folder
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        self._add("register", name=name, alias=alias, promote_if=promote_if, confidence=confidence)

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(self._run.notes))

    def status(self, status: str) -> None:
        self._add("status", status=status, time=self._now())

    def flush(self, patience: Patience) -> int:
        reason = self._sender.flush(patience)
        left = self._journal.unsent
        if left:
            self._warn(
                f"tracking: {left} of {len(self._journal.entries)} entries are not sent yet ({reason}); they are kept, "
                f"and {self._sending_command()} sends them"
            )
            for entry in self._journal.entries[self._journal.sent :]:
                if entry.call == "register":
                    self._warn(f"the model is not registered as {entry.arguments['name']} yet: it will be with them")
        return left

    def close(self, patience: float | None = None) -> int:
        left = self._journal.unsent if patience is None else self.flush(Patience(patience))
        self._sender.close()
        if self._journal.refused:
            self._warn(f"tracking: refused by the store for good: {'; '.join(self.refused)[:2000]}")
        return left

    def how_to_open(self) -> str:
        return self._run.open_with

    def _sending_command(self) -> str:
        if self._run.spec.settings._target_ != MLFLOW_RUN:
            return "the same command"
        uri = str(redact(self._run.spec.settings.uri or ""))
        address = " --uri=<the address, with its password>" if "***" in uri else ""
        return f"`python -m pipeline.sync {shlex.quote(shorter(self._journal.folder))}{address}`"

    def _agree(self) -> None:
        """Have the journal and the store agree on which run this is: one that the store has lost is sent again."""
        journal, run = self._journal, self._run
        if journal.damaged:
            name = shorter(journal.folder / NAME)
            self._warn(f"tracking: {journal.damaged} damaged lines of {name} were skipped")
        if (lost := journal.run_id) != run.run_id:
            if lost is not None:
                self._warn(
                    f"tracking: the store does not have the run {lost}: all {len(journal.entries)} entries are sent "
                    f"again, as run {run.run_id}"
                )
            self._note_run()
        elif run.spec.parent:
            self._add_parent(run.spec.parent)

    def _add_parent(self, parent: str) -> None:
        known: dict[str, str] = {}
        for entry in self._journal.entries:
            if entry.call == "tags":
                known |= entry.arguments["values"]
        if known.get(MLFLOW_PARENT_RUN_ID, self._journal.store.get("parent")) != parent:
            self._journal.add("tags", {"values": {MLFLOW_PARENT_RUN_ID: parent}})

    def _note_run(self) -> None:
        spec = self._run.spec
        self._journal.begin(
            {
                "run_id": self._run.run_id,
                "kind": spec.settings.kind,
                "uri": str(redact(spec.settings.uri)) if spec.settings.uri else None,
                "target": spec.settings._target_,
                "experiment": spec.experiment,
                "name": spec.name,
                "parent": spec.parent,
            }
        )

    def _add(self, call: str, **arguments: Any) -> None:
        self._remember(call, arguments)
        try:
            self._journal.add(call, arguments)
        except OSError as error:
            self._warn(f"tracking: the journal cannot be written ({error}); what is not sent is lost when the run ends")
        self._sender.notify()

    def _now(self) -> int:
        """Returns the time in milliseconds, never before what was recorded, as clocks may be set back."""
        return max(int(time.time() * 1000), self._latest)

    def _remember(self, call: str, arguments: Mapping[str, Any]) -> None:
        self._latest = max(self._latest, int(arguments.get("time") or 0))
        match call:
            case "params":
                self._params |= arguments["values"]
            case "metrics":
                self._metrics |= {(name, arguments["step"]) for name in arguments["values"]}
            case "dataset":
                self._datasets.add(arguments["digest"])


def _unusable(spec: RunSpec, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    problem = f"tracking={spec.settings.kind} cannot be used ({reason})"
    expected = "a store that can be opened, and that no other program keeps locked"
    return UserError(problem, expected, "tracking=off" if spec.settings.kind == "local" else "tracking=local")
