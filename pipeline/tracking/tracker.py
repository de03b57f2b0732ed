"""The tracker that a run and its stages record with: into the run's journal first, from there to the store."""

import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.schemas import MLFLOW_RUN
from pipeline.paths import shorter
from pipeline.redaction import redact
from pipeline.runs.journal import NAME, Journal, place_of
from pipeline.system.signals import beat, requested
from pipeline.tracking.params import metric_name, param_texts
from pipeline.tracking.stored_run import Opener, RunSpec, StoredRun, open_run, reason

if TYPE_CHECKING:  # a plan, or a wrong setting, needs no NumPy
    from stages.results import Dataset, Exported

STOPPED_SECONDS = 4.0
"""Seconds that the end of a run that was stopped, and is to end soon, waits for the store."""

FINISHED_SECONDS = 20.0
"""Seconds that a run that was not stopped waits for a store that does not answer."""

LONGEST_SECONDS = 600.0
"""Seconds that such a run waits for a store that answers, but slowly."""

RETRY_SECONDS = 2.0
POLL_SECONDS = 0.02
TOLD_EVERY_SECONDS = 10.0


class Sender:
    """Sends what `journal` has and the store has not, in order, and again where the store does not answer.

    Args:
        warn: gets a line when the store goes away, when it is back, and for every entry that it refuses.

    Attributes:
        trouble: why the store takes nothing at the moment.
        refused: entries, and values of entries, that the store will never take, and why.
    """

    def __init__(self, run: StoredRun, journal: Journal, warn: Callable[[str], None]) -> None:
        self.trouble: str | None = None
        self.refused: list[str] = []
        self._last_answer = time.monotonic()
        self._run = run
        self._journal = journal
        self._warn = warn
        self._wake = threading.Event()
        self._closed = False
        threading.Thread(target=self._work, daemon=True, name="tracking").start()

    def notify(self) -> None:
        """Wake the thread."""
        self._wake.set()

    def wait(self, seconds: float, longest: float, log: Callable[[str], None] | None = None) -> str | None:
        """Wait until the store has everything; return why it has not, or None where it has.

        Args:
            seconds: since the store last answered. longest: seconds in all.
            log: gets a line now and then, of a wait that a signal ends.
        """
        began = self._last_answer = time.monotonic()
        say_at = began + TOLD_EVERY_SECONDS
        self.notify()
        while self._journal.unsent:
            time.sleep(POLL_SECONDS)
            beat()
            now = time.monotonic()
            if log is not None and requested() is not None:
                return "interrupted while waiting"
            is_away = self.trouble is not None and now - self._last_answer > seconds
            if is_away or now - began > longest:
                return self.trouble or f"sending takes longer than {longest:.0f} s"
            if log is not None and now > say_at:
                say_at = now + TOLD_EVERY_SECONDS
                left = self._journal.unsent
                log(f"sending {left} records, for at most {longest:.0f} s (Ctrl-C to send them later)")
        return None

    def close(self) -> None:
        """End the thread: no entry is begun afterwards."""
        self._closed = True
        self.notify()

    def _work(self) -> None:
        while not self._closed:
            self._wake.clear()
            if not (self._journal.unsent and self._send()):
                self._wake.wait(RETRY_SECONDS)

    def _send(self) -> bool:
        """Send the next entry; return whether it is done with."""
        self._journal.flush()
        answer = self._run.deliver(self._journal.entries[self._journal.sent])
        for refused in answer.refused:
            self.refused.append(refused)
            self._warn(f"tracking: rejected {refused}")
        before, self.trouble = self.trouble, answer.trouble
        if self.trouble is None:
            try:
                self._journal.mark_sent(self._journal.sent + 1)
            except OSError as error:
                self.trouble = reason(error)
        if self.trouble is not None:
            if before is None and not self._closed:
                self._warn(f"tracking: records cannot be sent ({self.trouble}); they are kept and sent again")
            return False
        if before is not None:
            self._warn("tracking: records can be sent again")
        self._last_answer = time.monotonic()
        return True


def _now() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)


class Tracker:
    """Records one run. A resumed run repeats nothing that its journal has; without a `spec` nothing is recorded.

    With `tracking=off` the journal alone is written.
    """

    def __init__(
        self, spec: RunSpec | None = None, warn: Callable[[str], None] = print, opener: Opener = open_run
    ) -> None:
        """Open the run of `spec`; one that the store does not know gets all that the journal has, as a new run.

        Args:
            opener: opens it in the store; one of a `StoreProcess` does so in another process.

        Raises:
            UserError: where the store cannot be used.
        """
        self._warn = warn
        self._params: dict[str, str] = {}
        self._metrics: set[tuple[str, int]] = set()
        if spec is None:
            return
        self._spec = spec
        self._journal = Journal(spec.folder)
        if self._journal.damaged:
            name = shorter(self._journal.folder / NAME)
            warn(f"tracking: {self._journal.damaged} damaged lines of {name} were skipped")
        for entry in self._journal.entries:
            self._remember(entry.call, entry.arguments)
        if spec.settings.kind == "off":
            if not self._journal.store:  # for one who sends it later
                self._journal.begin({"experiment": spec.experiment, "name": spec.name, "parent": spec.parent})
            return
        self._run = opener(spec, self._journal.run_id)
        self._agree()
        self._sender = Sender(self._run, self._journal, warn)

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded in the store."""
        return hasattr(self, "_sender")

    @property
    def run_id(self) -> str | None:
        """The id of the run in the store; None where it records nothing."""
        return self._run.run_id if self.is_on else None

    @property
    def recorded_status(self) -> str | None:
        """The last status that was recorded."""
        return self._journal.status

    @property
    def unsent(self) -> int:
        """The number of entries that the store does not have yet."""
        return self._journal.unsent if self.is_on else 0

    @property
    def notes(self) -> list[str]:
        """Lines on what came of the records so far, such as the version that a model was registered as."""
        return list(dict.fromkeys(self._run.notes)) if self.is_on else []

    @property
    def links(self) -> list[tuple[str, str]]:
        """Labels and texts of lines that show where to see the run: the command to type, its page, other pages."""
        if not self.is_on:
            return []
        lines = [("" if number else "open", line) for number, line in enumerate(self._run.open_with.splitlines())]
        return [*lines, *self._run.links.items()]

    def params(self, values: Mapping[str, Any]) -> None:
        """Record parameters by dotted names. One that has changed becomes a tag."""
        texts = param_texts(values)
        new = {name: text for name, text in texts.items() if name not in self._params}
        changed = {name: text for name, text in texts.items() if self._params.get(name, text) != text}
        if new:
            self._add("params", values=new)
        if changed:  # MLflow never changes a parameter
            self.tags({f"changed/{name}": text for name, text in changed.items()})

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags, which unlike parameters may change when a run is resumed."""
        plain = redact({str(name): str(value) for name, value in values.items()})
        self._add("tags", values={name: text[:5000] for name, text in plain.items()})

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Record one batch of metrics at `step`; the first value of a name at a step stays."""
        named = {str(redact(name)): float(value) for name, value in values.items()}
        new = {name: value for name, value in named.items() if (name, step) not in self._metrics}
        if new:
            self._add("metrics", values=new, step=step, time=_now())

    def artifact(self, path: Path, folder: str = "") -> None:
        """Record a file or directory under `folder`."""
        self._add("artifact", path=self._place(path), folder=folder)

    def text(self, content: str, name: str) -> None:
        """Record `content` as an artifact of that name."""
        self._add("text", content=str(redact(content)), name=str(redact(name)))

    def dataset(self, dataset: "Dataset") -> None:
        """Record a data set by its fingerprint as input of the run."""
        sizes = {name: len(split) for name, split in dataset.splits.items()}
        self._add("dataset", name=str(redact(dataset.name)), digest=dataset.fingerprint, sizes=sizes)

    def model(self, exported: "Exported") -> None:
        """Record a SavedModel as a model of the run."""
        self._add(
            "model",
            path=self._place(exported.path),
            image_shape=list(exported.image_shape),
            class_names=list(exported.class_names),
            columns=dict(exported.columns),
            answers=dict(exported.answers),
        )

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        """Register the run's model as a version of `name`, and move `alias` to it where it is better."""
        self._add("register", name=name, alias=alias, promote_if=promote_if, confidence=confidence)

    def view(
        self,
        name: str,
        settings: Sequence[str],
        metrics: Sequence[str],
        is_lower_better: bool,
        combinations: Sequence[str] | None = None,
    ) -> None:
        """Record a view of the experiment's runs; see `StoredRun.view`."""
        self._add(
            "view",
            name=str(redact(name)),
            settings=[metric_name(str(redact(setting))) for setting in settings],
            metrics=[str(redact(metric)) for metric in metrics],
            is_lower_better=is_lower_better,
            combinations=None if combinations is None else [str(redact(text)) for text in combinations],
        )

    def status(self, status: str) -> None:
        """Record the run's status: `RUNNING`, `FINISHED`, `FAILED` or `KILLED`."""
        self._add("status", status=status, time=_now())

    def flush(self, log: Callable[[str], None] | None = None, seconds: float = STOPPED_SECONDS) -> int:
        """Wait until the store has everything, and return how many entries it misses; warn why, and what to type.

        Args:
            log: of a run that was not stopped, which waits for long: gets a line now and then on what is waited for.
            seconds: to wait for one that was stopped, and should end soon.
        """
        if not self.is_on:
            return 0
        limits = (seconds, seconds) if log is None else (FINISHED_SECONDS, LONGEST_SECONDS)
        why = self._sender.wait(*limits, log)
        left = self.unsent
        if left:
            command = f"`python -m pipeline sync {shlex.quote(shorter(self._journal.folder))}`"
            command = command if self._spec.settings._target_ == MLFLOW_RUN else "the same command"
            count = len(self._journal.entries)
            self._warn(f"tracking: {left} of {count} records are pending ({why}); {command} sends them")
        return left

    def close(self, seconds: float | None = None) -> int:
        """End: nothing is sent afterwards; `seconds`: to `flush` before. Return how many entries the store misses."""
        left = self.unsent if seconds is None else self.flush(seconds=seconds)
        if self.is_on:
            self._sender.close()
            if refused := self._sender.refused:
                self._warn(f"tracking: rejected, and not sent again: {'; '.join(refused)[:2000]}")
        return left

    def _place(self, path: Path) -> str:
        folder = self._spec.folder if hasattr(self, "_spec") else path
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

    def _agree(self) -> None:
        """Have the journal and the store agree on which run this is."""
        journal, run, spec = self._journal, self._run, self._spec
        if (lost := journal.run_id) == run.run_id:
            return
        if lost is not None:
            self._warn(
                f"tracking: the run {lost} was not found; all {len(journal.entries)} records are sent again, as "
                f"run {run.run_id}"
            )
        uri = str(redact(spec.settings.uri)) if spec.settings.uri else None
        store = {"kind": spec.settings.kind, "uri": uri, "target": spec.settings._target_}
        own = {
            "place": place_of(journal.folder),
            "experiment": spec.experiment,
            "name": spec.name,
            "parent": spec.parent,
        }
        journal.begin({"run_id": run.run_id, **store, **own})

    def _add(self, call: str, **arguments: Any) -> None:
        if not hasattr(self, "_journal"):
            return
        self._remember(call, arguments)
        try:
            self._journal.add(call, arguments)
        except OSError as error:
            self._warn(f"tracking: the journal cannot be written ({error}); pending records are lost when the run ends")
        if self.is_on:
            self._sender.notify()

    def _remember(self, call: str, arguments: Mapping[str, Any]) -> None:
        if call == "params":
            self._params |= arguments["values"]
        elif call == "metrics":
            self._metrics |= {(name, arguments["step"]) for name in arguments["values"]}


def open_tracker(spec: RunSpec, warn: Callable[[str], None], opener: Opener = open_run) -> Tracker:
    """Begin the tracked run of `spec`, or resume it: it is RUNNING then.

    Raises:
        UserError: where the store cannot be used.
    """
    tracker = Tracker(spec, warn, opener)
    before = {} if tracker.recorded_status is None else {"failed_stage": "", "error": ""}
    tracker.status("RUNNING")
    tracker.tags({**before, **spec.tags})
    return tracker
