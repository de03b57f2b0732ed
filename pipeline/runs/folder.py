"""The folder of a run: its summary, configuration, lock and checkpoints, and the one way in which a run ends."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.paths import LOCK, shorter
from pipeline.records import yaml_text
from pipeline.runs.journal import FOLLOWED, SENT, Journal
from pipeline.runs.journal import NAME as JOURNAL
from pipeline.runs.lock import is_locked, locked, share
from pipeline.runs.summary import NAME, Summary, one_line
from stages.checkpoints.names import START, can_start, checkpoint_files
from stages.errors import UserError
from stages.settings.places import appendable
from stages.storage.atomic import atomic_write

CONFIG = "config.yaml"

LOG = "pipeline.log"
"""The output of the run, without secrets."""

INTERRUPTED = "INTERRUPTED"
"""Status of a run or sweep that has not ended although no process works on it; the same command resumes it."""

Warn = Callable[[str], None]


def ignore(line: str) -> None:
    """Drop a warning."""


class RunFolder:
    """A run on disk.

    Attributes:
        path: The folder.
        lock: The open lock file while this process has claimed the run, else None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: IO[str] | None = None
        self._live: Summary | None = None

    def __str__(self) -> str:
        return shorter(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    # Contents

    @property
    def summary(self) -> Summary:
        """The summary: the one that this process fills while it has claimed the run, else the one in the file.

        Raises:
            UserError: If the folder does not contain a run.
        """
        summary = self._live or self.read()
        if summary is None:
            raise UserError(f"there is no run in {self.path}", "the folder of a run", "python -m pipeline runs")
        return summary

    def read(self, warn: Warn = ignore) -> Summary | None:
        """Return the summary in the file; None if there is none, or, with a warning, if it cannot be read."""
        try:
            summary = Summary.read(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            warn(f"{shorter(self.path / NAME)} cannot be read, so this run is skipped ({error})")
            return None
        return replace(summary, folder=self.path.resolve())  # it may have been moved

    def write(self, summary: Summary | None = None, durable: bool = True) -> None:
        """Write `summary`, by default the one that this process fills.

        Raises:
            OSError: If it cannot be written. The file is unchanged then.
        """
        (summary or self.summary).write(self.path, durable)

    @property
    def status(self) -> str:
        """The status now: `RUNNING`, `FINISHED`, `FAILED`, `KILLED`, or `INTERRUPTED`.

        Raises:
            UserError: If the folder does not contain a run.
        """
        return current_status(self.summary.status, self.path)

    @property
    def has_finished(self) -> bool:
        """Whether the folder contains a run that is FINISHED."""
        summary = self.read()
        return summary is not None and summary.status == "FINISHED"

    @property
    def has_begun(self) -> bool:
        """Whether the run has recorded anything."""
        return (self.path / JOURNAL).exists()

    @property
    def is_unsent(self) -> bool:
        """Whether the run was tracked and the store misses records: a process died, or the store did not respond."""
        summary, journal = self.read(), self.journal
        is_tracked = journal.is_tracked or (summary is not None and summary.run_id is not None)
        return is_tracked and not journal.is_closed

    @property
    def can_start(self) -> bool:
        """Whether the folder has a checkpoint to start from: its own, or the start of a fork."""
        return can_start(self.checkpoints)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def journal(self) -> Journal:
        """The journal, read from its file."""
        return Journal(self.path)

    @property
    def config(self) -> DictConfig:
        """The complete configuration, without secrets.

        Texts that look like interpolations are not resolved. The recorded configuration has none, and the folder may
        come from somebody else.

        Raises:
            UserError: If it cannot be read.
        """
        try:
            content = OmegaConf.create(yaml_text(self.path / CONFIG).decode())
            document = OmegaConf.create(_literal(OmegaConf.to_container(content)))
            if not isinstance(document, DictConfig):
                raise ValueError("it is not a YAML mapping")
        except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
            problem = f"{shorter(self.path / CONFIG)} cannot be read ({one_line(error)})"
            raise UserError(problem, "a run whose files are intact", "python -m pipeline runs") from error
        return document

    def write_config(self, text: str) -> Path:
        """Write the complete configuration, as YAML without secrets; return the file."""
        atomic_write(self.path / CONFIG, text)
        return self.path / CONFIG

    def epochs(self) -> dict[int, dict[str, float]]:
        """Return the metrics of each epoch, counted from 1, from the journal; empty without a journal."""
        rows: dict[int, dict[str, float]] = {}
        for entry in self.journal.entries:
            if entry.call == "metrics" and "train/loss" in entry.arguments["values"] and entry.arguments["step"] > 0:
                rows.setdefault(int(entry.arguments["step"]), {}).update(entry.arguments["values"])
        return rows

    # Locks

    @property
    def is_locked(self) -> bool:
        """Whether a process works on the run."""
        return is_locked(self.path)

    def locked(self, patience: float | None = None, shared: bool = False) -> AbstractContextManager[IO[str]]:
        """Lock the run for other processes; see `pipeline.runs.lock.locked`."""
        return locked(self.path, patience, shared)

    @contextmanager
    def claimed(self, new: Summary, is_supervised: bool = False, supervises: bool = False) -> Iterator[Summary | None]:
        """Create the folder if it is missing, lock it and begin its run; yield the summary of a run that is resumed.

        The summary is written at once, before TensorFlow is imported, so that the same command finds the run.
        Everything about a run is written within this block. If a new run has not recorded anything when the block ends,
        its summary and its folder are deleted.

        Args:
            new: The summary of a run that begins from nothing. A run that is resumed keeps its id and identity.
            is_supervised: Whether another process has locked the folder for this one.
            supervises: Whether this process only starts and watches the processes that write the run.

        Raises:
            UserError: If another process works on the run or has finished it.
        """
        is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        appendable(self.path / LOCK).open("a").close()  # its time shows when the run began
        with self.locked(shared=is_supervised) as lock:
            if supervises:
                share(lock)
            if not (self.path / LOCK).exists():
                raise UserError(f"{self} was deleted by another process", "an existing run", "resume=never")
            before = self.read()
            if before is not None and before.status == "FINISHED":
                problem = f"{self} was finished by another process"
                raise UserError(problem, "a run that was interrupted", "resume=never")
            try:
                self.lock = None if supervises else lock
                self._live = None if supervises else self._resumed(before, new)
                if before is None:
                    new.write(self.path, durable=False)  # it is written durably once the run has an id
                yield before
            finally:
                self.lock = self._live = None
                if before is None and not self.has_begun:
                    (self.path / NAME).unlink(missing_ok=True)
                    if is_new:
                        self.remove_if_unused()

    def _resumed(self, before: Summary | None, new: Summary) -> Summary:
        if before is None:
            return new
        fingerprint = before.facts.fingerprint if checkpoint_files(self.checkpoints) else None
        facts = replace(new.facts, fingerprint=fingerprint)
        return replace(new, run_id=before.run_id, identity=before.identity or new.identity, facts=facts)

    # The end of the run

    def end(self, status: str, error: str | None = None) -> bool:
        """Write the final status of a run that is RUNNING; return whether it was.

        This is the one place where a run ends, whether its own process, its supervisor, its follower or a later
        command ends it. The caller holds the lock. Calling it again changes nothing.

        Args:
            status: FINISHED, FAILED or KILLED.
            error: Why it did not finish, in one line.

        Raises:
            OSError: If the summary cannot be written.
        """
        summary = self._live or self.read()
        if summary is None or summary.status != "RUNNING":
            return False
        summary.status, summary.error = status, error or summary.error
        summary.ending = status == "FINISHED"
        self.write(summary)
        return True

    def forget_records(self) -> None:
        """Delete the journal of a run that was refused before it began."""
        for name in (JOURNAL, SENT):
            (self.path / name).unlink(missing_ok=True)

    def keep_last_checkpoint(self) -> None:
        """Delete the checkpoints that a finished run no longer needs: earlier ones, and the start of a fork.

        `fork=` starts from the last checkpoint. A fork that has written none keeps its start.
        """
        by_step = checkpoint_files(self.checkpoints)
        unused = [*by_step[:-1], self.checkpoints / START] if by_step else []
        for path in unused:
            with suppress(OSError):  # a leftover does no harm
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the summary of a run that has recorded nothing, and the folder if it holds nothing else."""
        for name in (NAME, LOCK, FOLLOWED):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def remove_if_unused(self) -> None:
        """Remove the folder if it has neither a summary nor a log."""
        if not any([*self.path.glob(NAME), *self.path.glob("*.log")]):
            shutil.rmtree(self.path, ignore_errors=True)


def current_status(recorded: str, folder: Path) -> str:
    """Return the current status of a run or sweep: RUNNING counts only while a process has locked its folder."""
    return INTERRUPTED if recorded == "RUNNING" and not is_locked(folder) else recorded


def _literal(value: Any) -> Any:
    """Return `value` with its texts escaped, so OmegaConf does not resolve anything in them."""
    if isinstance(value, dict):
        return {key: _literal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_literal(part) for part in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
