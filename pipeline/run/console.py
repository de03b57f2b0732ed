"""Prints a run: the plan, the progress, a line an epoch, the summary; to the terminal and to `pipeline.log`."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from pipeline.config.experiment import Experiment
from pipeline.paths import shorter
from pipeline.redaction.mask import redact
from pipeline.run.description import sizes
from pipeline.run.finding import debug_kind
from pipeline.run.plan import PlannedStage
from pipeline.run.provenance import command
from pipeline.run.summary import Summary

UNITS = ("images", "features")
"""Kinds of examples that training may count: features are what a frozen backbone has made of images."""

TRAINING = {
    "build": "building and tracing",
    "features": "features",
    "steps": "steps",
    "input_wait": "waiting for input",
    "validation": "validation",
    "callbacks": "callbacks",
    "checkpoints": "checkpoints",
    "other": "other",
}
"""The parts of training's time, `train/<part>_seconds`, and how they are called."""

PLAIN_PROGRESS_SECONDS = 30
"""Seconds between two lines of progress where there is no terminal."""


class Console:
    """Prints to the terminal, or plainly to a file or pipe; remembers what it printed until a log is opened."""

    def __init__(self, printed: Sequence[str] = (), log: Path | None = None) -> None:
        """Prints to standard output.

        Args:
            printed: lines of another console, which belong at the beginning of the log.
            log: prints nothing, and writes to this file from the beginning: of a process whose output is there, too.
        """
        width = None if sys.stdout.isatty() else 140
        self.is_quiet = log is not None
        self._rich = RichConsole(
            highlight=False, soft_wrap=True, width=width, markup=False, emoji=False, quiet=self.is_quiet
        )
        self._before_log = list(printed)
        self._log: TextIO | None = None
        if log is not None:
            self.open_log(log)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_plain = time.monotonic()

    @property
    def said(self) -> list[str]:
        """The lines printed before a log was opened, for the console of the process that will open it."""
        return list(self._before_log)

    def open_log(self, path: Path) -> None:
        """Writes everything said so far to `path`, and from now on every line with its time."""
        if self._log is not None:
            return
        self._log = path.open("a", buffering=1)
        self._log.writelines(self._before_log)
        self._before_log.clear()

    def close(self) -> None:
        self.end_progress()
        if self._log is not None:
            with suppress(OSError):
                self._log.close()
            self._log = None

    def log(self, line: str = "", style: str | None = None) -> None:
        text = str(redact(line))
        (self._bar.console if self._bar else self._rich).print(text, style=style)
        self._write(text)

    def warn(self, line: str) -> None:
        self.log(f"warning: {line}", style="yellow")

    def error(self, line: str) -> None:
        self.log(f"error: {line}", style="bold red")

    def live(self, shown: Callable[[], RenderableType]) -> AbstractContextManager[object]:
        """Keeps what `shown` returns at the bottom of a terminal, up to date, while lines are printed above it."""
        if not self._rich.is_terminal:
            return nullcontext()
        return Live(console=self._rich, get_renderable=shown, refresh_per_second=4, transient=True)

    def working(self, what: str) -> AbstractContextManager[object]:
        """Shows on a terminal that something takes its time."""
        return self._rich.status(what) if self._rich.is_terminal else nullcontext()

    def log_only(self, text: str) -> None:
        self._write(str(redact(text)))

    def table(self, table: Table) -> None:
        self._rich.print(table)
        plain = RichConsole(width=200, markup=False)
        with plain.capture() as captured:
            plain.print(table)
        for line in captured.get().splitlines():
            self._write(str(redact(line)))

    def plan(self, experiment: Experiment, plan: Sequence[PlannedStage]) -> None:
        """Prints what will be done, before it is done."""
        chosen = experiment.document.precision
        precision = chosen.policy + "".join(f", {name} in {own}" for name, own in chosen.layers.items())
        self.log(f"{experiment.name}: seed {experiment.seed}, {precision}, tracking {experiment.tracking.kind}")
        if experiment.debug is not None:
            self.log(f"debug run: {experiment.debug.kind}. It resumes nothing, and its results count nowhere")
        widths = [max((len(text) for text in column), default=0) for column in zip(*map(_cells, plan), strict=True)]
        digits = len(str(len(plan)))
        partly = any(stage.action != "runs" for stage in plan)
        for index, stage in enumerate(plan, 1):
            name, option, inputs, makes = _cells(stage)
            action = f"{stage.action:8}" if partly else ""
            row = f"{name:{widths[0]}}  {option:{widths[1]}}  {inputs:>{widths[2]}} -> {makes}"
            self.log(f"  {index:>{digits}}  {action}{row}".rstrip())

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        rate = f"{images_per_second:,.0f} images/s" if images_per_second else ""
        if self._rich.is_terminal:
            self._show_bar(done, total, rate, note)
        elif self._is_due():
            self.log(f"step {done}/{total}  {note}  {rate}")

    def _is_due(self) -> bool:
        """Returns whether the last line of progress is long ago, and if so, counts from now."""
        if time.monotonic() - self._last_plain < PLAIN_PROGRESS_SECONDS:
            return False
        self._last_plain = time.monotonic()
        return True

    def doing(self, what: str) -> None:
        """Shows `what` in the place of the last progress and its time left."""
        if self._rich.is_terminal:
            self._show_bar(0, None, "", what)
        elif self._is_due():
            self.log(what)

    def end_progress(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def summary(self, summary: Summary, how_to_open: str | None) -> None:
        """Prints the results of the run, and where everything is."""
        metrics, rows = summary.metrics, []
        rows.append(("run", f"{summary.run_id or 'not tracked'}  {summary.status}"))
        if how_to_open:
            rows += zip(("open", ""), how_to_open.splitlines(), strict=False)
        rows.append(("folder", shorter(Path(summary.folder))))
        if (data := sizes(summary.facts.get("data", {}))) is not None:
            rows.append(("data", data))
        rows += _epochs(summary)
        if tested := _tested(summary):
            rows.append(("test", tested))
        rows += _speed(summary)
        may_resume = debug_kind(summary.choices) is None
        if may_resume and summary.status != "FINISHED" and any((Path(summary.folder) / "checkpoints").glob("*.npz")):
            rows.append(("resume", f"{command()}  (from its last checkpoint)"))
        for kind, path in summary.exported.items():
            rows.append(("export", f"{shorter(Path(path))} ({kind})"))
            if (difference := metrics.get(f"export/{kind}/max_abs_diff")) is not None:
                rows.append(("", f"its predictions differ from the model's by {difference:.1e} at most"))
        self.log()
        for label, text in rows:
            self.log(f"{label:11} {text}")

    def times(self, summary: Summary) -> None:
        """Prints, last of all, how long the command took and for what; the parts add up to the whole."""
        again = f" (this command; resumed after step {summary.resumed_from_step})" if summary.resumed_from_step else ""
        stages = [f"{name} {stage.seconds:.1f}" for name, stage in summary.stages.items() if stage.status != "skipped"]
        parts = [f"start {summary.start_seconds:.1f}", *stages, f"recording {summary.recording_seconds:.1f}"]
        self.log(f"{'time':11} {summary.status} in {summary.seconds:.1f} s{again}: {', '.join(parts)}")

    def _show_bar(self, done: int, total: int | None, rate: str, note: str) -> None:
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
            )
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._rich, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(note, total=total, rate=rate)
        assert self._task is not None
        self._bar.tasks[0].total = total  # `update` takes None for "as before", and then knows a time left
        self._bar.update(self._task, completed=done, description=note, rate=rate)

    def _write(self, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {text}".rstrip() + "\n"
        if self._log is None and self.is_quiet:  # closed at the end of the run
            sys.stderr.write(line)
            return
        if self._log is None:
            self._before_log.append(line)
            return
        try:
            self._log.write(line)
        except OSError as error:  # a full disk must not end a training by way of its log
            with suppress(OSError):
                self._log.close()
            self._log = None
            self._rich.print(f"warning: pipeline.log ends here ({error.strerror})", style="yellow")


def _cells(stage: PlannedStage) -> tuple[str, str, str, str]:
    return stage.name, stage.option or stage.target, ", ".join(stage.inputs), stage.makes


def _scores(metrics: Mapping[str, float], prefix: str) -> str:
    names = [name for name in ("accuracy", "loss") if f"{prefix}{name}" in metrics]
    return ", ".join(f"{name} {metrics[prefix + name]:.4f}" for name in names)


def _tested(summary: Summary) -> str:
    """Returns the scores on the test split, the accuracy with its interval."""
    scores = _scores(summary.metrics, "test/")
    ends = summary.facts.get("intervals", {}).get("test/accuracy")
    if not ends:
        return scores
    accuracy, separator, rest = scores.partition(", ")
    low, high = ends
    return f"{accuracy} ({100 * summary.facts['confidence']:g} %: {low:.4f} to {high:.4f}){separator}{rest}"


def _epochs(summary: Summary) -> list[tuple[str, str]]:
    """Returns the validation of the best and of the last epoch, and of which of them the weights are."""
    metrics, weights = summary.metrics, summary.weights or {}
    if not {"train/best_epoch", "train/last_epoch"} <= metrics.keys():
        return []
    best, last = metrics["train/best_epoch"], metrics["train/last_epoch"]
    tested = "; test and export have its weights" + (" (EMA)" if weights.get("ema") else "")
    by = f" (by {weights['monitor']})" if "monitor" in weights else ""
    rows = [("best epoch", f"{best:.0f}{by}: val {_scores(metrics, 'val/best_')}")]
    if last != best:
        rows.append(("last epoch", f"{last:.0f}: val {_scores(metrics, 'val/')}"))
    if "epoch" in weights:
        index = 0 if weights["epoch"] == best else -1
        label, text = rows[index]
        rows[index] = (label, text + tested)
    return rows


def _speed(summary: Summary) -> list[tuple[str, str]]:
    """Returns how fast training was, and what its time went into."""
    metrics, rows = summary.metrics, []
    rates = [f"{metrics[f'train/{unit}_per_second']:,.0f} {unit}/s" for unit in UNITS if _rate(unit) in metrics]
    if rates and "train/step_milliseconds" in metrics:
        step = f"{metrics['train/step_milliseconds']:.2f} ms a step"
        rows.append(("speed", ", ".join([*rates, step, f"{summary.replicas} replica(s)"])))
    parts = {name: metrics[f"train/{name}_seconds"] for name in TRAINING if f"train/{name}_seconds" in metrics}
    if parts:
        rows.append(("training", ", ".join(f"{TRAINING[name]} {seconds:.1f} s" for name, seconds in parts.items())))
    return rows


def _rate(unit: str) -> str:
    return f"train/{unit}_per_second"
