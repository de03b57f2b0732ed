"""Lines about a decision, which the command prints before it acts."""

from dataclasses import dataclass, field
from pathlib import Path

from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.runs.summary import Summary


@dataclass
class Notes:
    """Lines for the user: plain ones, and warnings."""

    lines: list[tuple[bool, str]] = field(default_factory=list)
    """Whether a line is a warning, and the line."""

    def log(self, line: str) -> None:
        self.lines.append((False, line))

    def warn(self, line: str) -> None:
        self.lines.append((True, line))

    def run(self, doing: str, run: Summary, more: str = "") -> None:
        """Note what is done with an earlier run, such as `resuming`."""
        self.log(f"{doing} {shorter(Path(run.folder))} (status: {run.status}){more}")
        if run.overrides:
            self.log(f"with the overrides {' '.join(run.overrides)}")

    def show(self, console: Console) -> None:
        """Print the lines."""
        for is_warning, line in self.lines:
            (console.warn if is_warning else console.log)(line)
