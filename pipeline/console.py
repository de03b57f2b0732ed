"""The console of a command: lines, warnings, errors and progress, on the terminal and in `pipeline.log`."""

import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from io import StringIO
from pathlib import Path
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pipeline.redaction import redact
from stages.errors import printable, printable_lines
from stages.settings.places import appendable

PLAIN_PROGRESS_SECONDS = 30
"""Seconds between two lines of progress without a terminal."""

PLAIN_WIDTH = 80
"""Columns of text without a terminal."""

LABEL = 12
"""Columns of a label, including the space after it."""


def wrapped_lines(text: str, width: int, label: str | None = None) -> list[str]:
    """Return `text` in lines of at most `width` columns, without dividing words. Indentation is kept.

    Args:
        text: The text.
        width: The number of columns.
        label: A label before the first line, in a separate column.
    """
    indent = text[: len(text) - len(text.lstrip())]
    first, rest = (indent, 2 * indent) if label is None else (f"{label:{LABEL}}", " " * LABEL)
    lines = textwrap.wrap(
        text.strip(),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


class Console:
    """Prints to a terminal, or plain lines to a file or pipe. Lines are also written to the log once it is open."""

    def __init__(self, log: Path | None = None) -> None:
        """Create a console for standard output.

        Args:
            log: Write only to this file, for a process whose output is redirected to it.
        """
        width = None if sys.stdout.isatty() else 140
        self.is_quiet = log is not None
        self._rich = RichConsole(
            highlight=False, soft_wrap=True, width=width, markup=False, emoji=False, quiet=self.is_quiet
        )
        self._log: TextIO = StringIO()
        if log is not None:
            self.open_log(log)
        self._bar: Progress | None = None
        self._last_plain = time.monotonic()

    def open_log(self, path: Path) -> None:
        """Write all lines so far to `path`, and every later line with its time. Only the first call has an effect."""
        if isinstance(self._log, StringIO):
            before = self._log.getvalue()
            self._log = appendable(path).open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
            self._log.write(before)

    def close(self) -> None:
        self.end_progress()
        log, self._log = self._log, sys.stderr if self.is_quiet else StringIO()
        if log is not self._log:  # `close` may be called again
            with suppress(OSError):
                log.close()

    def log(self, line: str = "", style: str | None = None) -> None:
        text = printable_lines(str(redact(line)))
        (self._bar.console if self._bar else self._rich).print(text, style=style)
        self._write(text)

    def wrapped(self, text: str, label: str | None = None) -> None:
        """Print `text` in lines that fit the terminal, or 80 columns elsewhere, without dividing words.

        Args:
            text: The text.
            label: A label before the first line, in a separate column.
        """
        width = self._rich.width if self._rich.is_terminal else PLAIN_WIDTH
        for line in wrapped_lines(text, width, label):
            self.log(line)

    def warn(self, line: str) -> None:
        self.log(f"warning: {line}", style="yellow")

    def error(self, line: str) -> None:
        self.log(f"error: {line}", style="bold red")

    def live(self, shown: Callable[[], RenderableType]) -> AbstractContextManager[object]:
        """Show the current result of `shown` at the bottom of a terminal, while lines are printed above it."""
        if not self._rich.is_terminal:
            return nullcontext()
        return Live(console=self._rich, get_renderable=shown, refresh_per_second=4, transient=True)

    def working(self, what: str) -> AbstractContextManager[object]:
        """Show on a terminal what the command is doing while the block runs."""
        return self._rich.status(printable(what)) if self._rich.is_terminal else nullcontext()

    def log_only(self, text: str) -> None:
        self._write(str(redact(text)))

    def table(self, table: Table) -> None:
        self._rich.print(table)
        plain = RichConsole(width=200, markup=False)
        with plain.capture() as captured:
            plain.print(table)
        self.log_only(captured.get())

    def progress(self, done: int, total: int | None, note: str) -> None:
        if self._rich.is_terminal:
            self._show_bar(done, total, printable(note))
        elif time.monotonic() - self._last_plain >= PLAIN_PROGRESS_SECONDS:
            self._last_plain = time.monotonic()
            self.log(note if total is None else f"step {done}/{total}  {note}")

    def doing(self, what: str) -> None:
        """Show `what` instead of the last progress and its remaining time."""
        self.progress(0, None, what)

    def end_progress(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, done: int, total: int | None, note: str) -> None:
        if self._bar is None:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=self._rich, transient=True)
            self._bar.start()
            self._bar.add_task(note)
        self._bar.tasks[0].total = total  # `update` would ignore None, and show a remaining time
        self._bar.update(self._bar.tasks[0].id, completed=done, description=note)

    def _write(self, text: str) -> None:
        try:
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}".rstrip() + "\n")
        except OSError as error:  # a full disk must not end a training because of its log
            self.close()
            self._rich.print(f"warning: pipeline.log ends here ({error.strerror})", style="yellow")
