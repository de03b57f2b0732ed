"""Console output of a running sweep: a line for each job as it ends, and on a terminal a table of running jobs."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from pipeline.console import Console
from pipeline.exit_codes import DONE, WRONG_CONFIGURATION
from pipeline.paths import shorter
from pipeline.run.engine import RemoteJob
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.summary import PRUNED, Summary
from pipeline.sweep.process import LOG, OUTPUT, JobProcess, refusal_in


class Display:
    """The jobs of a sweep on the console.

    Args:
        titles: from the folders of all jobs, in their order, to what each is called; may grow up to `total`.
        total: how many there will be; None: as many as there are titles.
    """

    def __init__(self, console: Console, titles: Mapping[Path, str], total: int | None = None) -> None:
        self._total = total or len(titles)
        self.console = console
        self._titles = titles
        self._running: Sequence[JobProcess | RemoteJob] = ()
        self._ended: set[Path] = set()

    def title(self, folder: Path) -> str:
        """Returns what a job is called, padded to the longest of all."""
        return f"{self._titles[folder]:{min(max(map(len, self._titles.values())), 80)}}"

    def poll(self, running: Sequence[JobProcess | RemoteJob]) -> None:
        """Takes the processes that run now."""
        self._running = list(running)

    def skipped(self, folder: Path, reason: str) -> None:
        """Prints the line of a job that does not run."""
        self._ended.add(folder)
        self.console.log(f"{self.title(folder)}  {reason}")

    def ended(self, folder: Path, code: int, seconds: float, again: bool = False) -> None:
        """Prints the line of a job that has ended with `code`, `again` if it is to be run again."""
        if not again:
            self._ended.add(folder)
        self._running = [process for process in self._running if process.job.folder != folder]
        summary = read_run(folder)
        if code == DONE and summary is not None:
            self.console.log(f"{self.title(folder)}  {summary.status} in {seconds:.1f} s  {_result(summary)}".rstrip())
            return
        status = summary.status if summary is not None else "REFUSED" if code == WRONG_CONFIGURATION else "DIED"
        error = summary.error if summary is not None else refusal_in(folder) if code == WRONG_CONFIGURATION else None
        reason = f": {error}" if error else ""
        rerun = "; it is run again" if again else ""
        line = f"{self.title(folder)}  {status} in {seconds:.1f} s, exit code {code}{reason}{rerun}"
        self.console.log(line, style="bold red")
        if "(traceback in" not in reason:
            names = [name for name in (LOG, OUTPUT) if (folder / name).exists()]
            if names:
                self.console.log(f"{'':4} see {' and '.join(names)} in {shorter(folder)}")

    def table(self) -> Table:
        """Returns the jobs that run, and how many have ended and wait."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("running", "epoch", "best val accuracy", "seconds"):
            table.add_column(name, justify="left" if name == "running" else "right")
        for process in self._running:
            assert process.job.folder is not None
            epoch, best = process.progress
            epochs = getattr(process.job.experiment.settings.get("train"), "epochs", None)
            table.add_row(
                self._titles[process.job.folder],
                f"{epoch}/{epochs}" if epochs else str(epoch),
                "" if math.isnan(best) else f"{best:.4f}",
                f"{time.monotonic() - process.started:.0f}",
            )
        waiting = self._total - len(self._ended) - len(self._running)
        table.caption = f"{len(self._ended)} of {self._total} jobs have ended, {waiting} wait"
        table.caption_justify = "left"
        return table


def _result(summary: Summary) -> str:
    """Returns the best validation result of a run, and the test's."""
    if PRUNED in summary.facts:
        return f"pruned after epoch {summary.facts[PRUNED]}"
    parts = []
    for label, name in (("val", "val/best_accuracy"), ("test", "test/accuracy")):
        if name in summary.metrics:
            parts.append(f"{label} accuracy {summary.metrics[name]:.4f}")
    return ", ".join(parts)
