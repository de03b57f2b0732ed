"""Record a run in its journal, which a follower sends to the store."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pipeline.config.schemas import MLFLOW_RUN
from pipeline.paths import shorter
from pipeline.redaction import redact
from pipeline.runs.journal import FOLLOWED, NAME, SENT, Header, Journal, place_of
from pipeline.system.signals import beat, requested
from pipeline.tracking.params import metric_name, param_texts
from pipeline.tracking.stored_run import RunSpec, address_of, unusable
from stages.errors import UserError
from stages.settings.places import appendable

if TYPE_CHECKING:  # a plan, or a wrong setting, needs no NumPy
    from stages.results import Dataset, Exported

OPEN_SECONDS = 300.0
"""Longest wait, in seconds, for the store to be opened; a new database on a slow disk takes a minute."""

STOPPED_SECONDS = 4.0
"""Seconds that the end of a run waits for the store if the run was stopped and should end soon."""

FINISHED_SECONDS = 20.0
"""Seconds that the end of a run that was not stopped waits for a store that does not respond."""

LONGEST_SECONDS = 600.0
"""Seconds that such a run waits for a store that responds, but is slow."""

POLL_SECONDS = 0.02
REPORT_EVERY_SECONDS = 10.0


def no_end() -> str | None:
    """Return None. Used if another process watches the follower."""
    return None


class Recorder:
    """Record a run in its journal, each fact once. Without a journal, nothing is recorded."""

    def __init__(self, journal: Journal | None, warn: Callable[[str], None]) -> None:
        """Record in `journal`. `warn` gets a line if the journal is damaged or cannot be written."""
        self._warn = warn
        self._journal = journal
        self._params: dict[str, str] = {}
        self._metrics: set[tuple[str, int]] = set()
        if journal is not None and journal.damaged:
            warn(f"tracking: {journal.damaged} damaged lines of {shorter(journal.folder / NAME)} were skipped")
        for entry in () if journal is None else journal.entries:
            self._remember(entry.call, entry.arguments)

    def params(self, values: Mapping[str, Any]) -> None:
        """Record parameters by dotted names. A parameter that has changed is recorded as a tag."""
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
        """Record a batch of metrics at `step`. If a metric already has a value at this step, it is kept."""
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
        """Record a data set as input of the run, with its fingerprint."""
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
        """Register the run's model as a version of `name`, and move `alias` to it if it is better."""
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

    def _place(self, path: Path) -> str:
        folder = path if self._journal is None else self._journal.folder
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

    def _add(self, call: str, **arguments: Any) -> None:
        if self._journal is None:
            return
        self._remember(call, arguments)
        try:
            self._journal.add(call, arguments)
        except OSError as error:
            self._warn(f"tracking: the journal cannot be written ({error}); pending records are lost when the run ends")

    def _remember(self, call: str, arguments: Mapping[str, Any]) -> None:
        if call == "params":
            self._params |= arguments["values"]
        elif call == "metrics":
            self._metrics |= {(name, arguments["step"]) for name in arguments["values"]}


class Tracker(Recorder):
    """Record a session of a run in its journal, which a follower sends to the store.

    Without a `spec`, nothing is recorded. With `tracking=off`, the journal is written but not sent.
    """

    def __init__(
        self,
        spec: RunSpec | None = None,
        warn: Callable[[str], None] = print,
        follower_end: Callable[[], str | None] = no_end,
    ) -> None:
        """Begin a session of the run of `spec`.

        Args:
            spec: The run.
            warn: Gets a line when the store stops responding, when it responds again, and for every entry that it
                rejects.
            follower_end: Returns how the follower of the run has ended; None while it works.

        Raises:
            OSError: If the journal cannot be written.
        """
        super().__init__(None if spec is None else Journal(spec.folder), warn)
        self._spec = spec
        self._follower_end = follower_end
        self._trouble: str | None = None
        self._rejected: list[str] = []
        self._is_open = False
        if spec is not None and self._journal is not None:
            for name in (FOLLOWED, SENT):
                appendable(spec.folder / name)
            self._had_id = self._journal.run_id
            self._journal.begin(header_of(spec))

    @property
    def _sent_from(self) -> Journal | None:
        """The journal that a follower sends to the store; None if nothing is sent."""
        return None if self._spec is None or self._spec.settings.kind == "off" else self._journal

    @property
    def is_on(self) -> bool:
        """Whether the run is recorded in a store."""
        return self._sent_from is not None

    @property
    def run_id(self) -> str | None:
        """The id of the run in the store; None if it is not recorded there."""
        return None if self._sent_from is None else self._sent_from.run_id

    @property
    def recorded_status(self) -> str | None:
        """The last status that was recorded."""
        return None if self._journal is None else self._journal.status

    @property
    def unsent(self) -> int:
        """The number of entries that the store does not have yet."""
        return 0 if self._sent_from is None else self._sent_from.unsent

    @property
    def notes(self) -> list[str]:
        """Lines from the store for the user, such as the version that a model was registered as."""
        return [] if self._sent_from is None else list(dict.fromkeys(self._sent_from.upload.notes))

    @property
    def links(self) -> list[tuple[str, str]]:
        """Labels and texts of lines that show where to see the run: the command to type, its page, other pages."""
        links = [] if self._sent_from is None else self._sent_from.upload.links
        return [(label, text) for label, text in links]

    def begin(self, tags: Mapping[str, str]) -> None:
        """Record that the run is RUNNING, with `tags`, and wait until it is open in its store.

        Raises:
            UserError: If the store cannot be used.
        """
        before = {} if self.recorded_status is None else {"failed_stage": "", "error": ""}
        self.status("RUNNING")
        self.tags({**before, **tags})
        self.wait_until_open()

    def wait_until_open(self) -> None:
        """Wait until the follower has opened the run in its store, so that it has an id, or a signal has arrived.

        Raises:
            UserError: If the store cannot be used.
        """
        journal = self._sent_from
        if self._spec is None or journal is None:
            return
        deadline = time.monotonic() + OPEN_SECONDS
        while (upload := journal.upload).session != journal.header.session:
            if requested() is not None:
                return
            if (end := self._follower_end()) is not None:
                raise unusable(self._spec.settings, f"the helper process for tracking ended{end}")
            if time.monotonic() > deadline:
                raise unusable(self._spec.settings, f"no response after {OPEN_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
            beat()
        if upload.error is not None:
            raise UserError(*upload.error)
        self._is_open = True
        if self._had_id not in (None, upload.run_id):
            count = len(journal.entries)
            self._warn(
                f"tracking: the run {self._had_id} was not found; all {count} records are sent again, as run "
                f"{upload.run_id}"
            )

    def flush(self, log: Callable[[str], None] | None = None, seconds: float | None = None) -> int:
        """Wait until the store has everything; return how many entries it lacks.

        If it lacks entries, warn why, and how to send them.

        Args:
            log: Gets a line now and then during the wait. Pass it for a run that was not stopped, which may wait for
                long.
            seconds: How long to wait for a run that was stopped and should end soon; None: `STOPPED_SECONDS`.
        """
        journal = self._sent_from
        if self._spec is None or journal is None:
            return 0
        seconds = STOPPED_SECONDS if seconds is None else seconds
        limits = (seconds, seconds) if log is None else (FINISHED_SECONDS, LONGEST_SECONDS)
        why = self._wait(journal, *limits, log)
        self._warn_of_problems(journal)
        left = journal.unsent
        if left:
            command = f"`python -m pipeline sync {shlex.quote(shorter(journal.folder))}`"
            command = command if self._spec.settings._target_ == MLFLOW_RUN else "the same command"
            count = len(journal.entries)
            self._warn(f"tracking: {left} of {count} records are pending ({why}); {command} sends them")
        return left

    def close(self, seconds: float | None = None) -> int:
        """Warn about rejected entries; return how many entries the store lacks.

        Args:
            seconds: How long to wait for the store before (see `flush`). None to skip the wait.
        """
        left = self.unsent if seconds is None else self.flush(seconds=seconds)
        if self._sent_from is not None:
            self._warn_of_problems(self._sent_from)
        if self._rejected:
            self._warn(f"tracking: rejected, and not sent again: {'; '.join(self._rejected)[:2000]}")
        return left

    def _wait(self, journal: Journal, seconds: float, longest: float, log: Callable[[str], None] | None) -> str | None:
        """Wait until the store has everything; return the reason if it does not, else None.

        Args:
            journal: The journal that is sent.
            seconds: How long to wait since the store last accepted an entry.
            longest: How long to wait in all.
            log: Gets a line now and then. If it is given, a signal ends the wait.
        """
        began = answered = time.monotonic()
        say_at, unsent = began + REPORT_EVERY_SECONDS, -1
        while left := journal.unsent:
            now = time.monotonic()
            if left != unsent:
                answered, unsent = now, left
            trouble = self._problem(journal)
            if log is not None and requested() is not None:
                return "interrupted while waiting"
            is_away = trouble is not None and (now - answered > seconds or self._follower_end() is not None)
            if is_away or now - began > longest:
                return trouble or f"sending takes longer than {longest:.0f} s"
            if log is not None and now > say_at:
                say_at = now + REPORT_EVERY_SECONDS
                log(f"sending {left} records, for at most {longest:.0f} s (Ctrl-C to send them later)")
            time.sleep(POLL_SECONDS)
            beat()
        return None

    def _problem(self, journal: Journal) -> str | None:
        """Return why nothing is sent at the moment; None if nothing is wrong."""
        upload = journal.upload
        if (end := self._follower_end()) is not None:
            return f"the helper process for tracking ended{end}"
        is_followed = upload.session == journal.header.session
        if not (is_followed or self._is_open):
            return "the store is still being opened"
        if not (is_followed and journal.is_written):
            return f"files in {shorter(journal.folder)} cannot be written"
        return upload.trouble

    def _warn_of_problems(self, journal: Journal) -> None:
        """Warn about rejected records, and about changes in whether records can be sent, since the last call."""
        for rejected in journal.upload.rejected:
            if rejected not in self._rejected:
                self._rejected.append(rejected)
                self._warn(f"tracking: rejected {rejected}")
        before, self._trouble = self._trouble, self._problem(journal)
        if before is None and self._trouble is not None:
            self._warn(f"tracking: records cannot be sent ({self._trouble}); they are kept and sent again")
        elif before is not None and self._trouble is None:
            self._warn("tracking: records can be sent again")

    def _add(self, call: str, **arguments: Any) -> None:
        super()._add(call, **arguments)
        if self._is_open and self._sent_from is not None:
            self._warn_of_problems(self._sent_from)


def _now() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)


def header_of(spec: RunSpec) -> Header:
    """Return the header of a new session of a run."""
    settings = spec.settings
    return Header(
        session=token_hex(4),
        experiment=spec.experiment,
        name=spec.name,
        parent=spec.parent,
        kind=settings.kind,
        uri=address_of(settings),
        target=settings._target_,
        place=place_of(spec.folder),
        is_measured=spec.is_measured,
        has_jobs=spec.has_jobs,
    )
