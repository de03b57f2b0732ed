"""The results of the check: gpu.json and gpu.md, written again after each row."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.answering import Budget, Failed, OutOfTime, first_line
from benchmarks.page import markdown
from stages.storage.atomic import atomic_write

OK, FAILED, ERROR, SKIPPED, NOT_MEASURED = "ok", "failed", "error", "skipped", "not measured"
LAWS = "laws"


class Skipped(Exception):  # noqa: N818
    """This machine cannot measure a row; the message is the reason."""


@dataclass
class Row:
    """section: `laws`, or the name of a network. name: what is measured. reason: why there are no values."""

    section: str
    name: str
    status: str = OK
    reason: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def result(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status


class Report:
    """Collects rows, prints each one, and writes all of them after each one."""

    def __init__(self, folder: Path, budget: Budget, facts: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
        self.rows: list[Row] = []
        self.facts = dict(facts)
        self.notes = list(notes)
        self._folder = folder
        self._budget = budget
        self._is_finished = False
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    @contextmanager
    def row(self, section: str, name: str) -> Iterator[Row]:
        """Yield a row whose values the block fills in. An exception in the block becomes the row's status."""
        row, began = Row(section, name), self._budget.used
        try:
            yield row
        except OutOfTime:
            row.status, row.reason = NOT_MEASURED, "out of time"
        except Skipped as error:
            row.status, row.reason = SKIPPED, str(error)
        except Failed as error:
            row.status, row.reason = ERROR, str(error)
        except Exception as error:
            row.status, row.reason = ERROR, first_line(error)
        row.seconds = round(self._budget.used - began, 1)
        self.add(row)

    def add(self, row: Row) -> None:
        """Add a finished row."""
        self.rows.append(row)
        self._write()
        print(f"{self._budget.used:6.1f} s  {row.section:18} {row.name:52} {_printed(row)}", flush=True)

    def skip(self, section: str, name: str, reason: str) -> None:
        """Add a row that is not measured."""
        self.add(Row(section, name, SKIPPED, reason))

    def finish(self) -> int:
        """Record that nothing is missing; return the exit code: 1 if a law failed or could not be checked."""
        self._is_finished = True
        self._write()
        return int(any(row.section == LAWS and row.status in (FAILED, ERROR) for row in self.rows))

    def markdown(self) -> str:
        """Return all rows as tables."""
        parts = [*self.notes, self._machine()]
        if not self._is_finished:
            parts.append("The check has not finished, so rows are missing.")
        laws = [row for row in self.rows if row.section == LAWS]
        if laws:
            parts += ["Laws:", markdown(("law", "compared", "value", "at most", "result"), map(_law, laws))]
        networks = list(dict.fromkeys(row.section for row in self.rows if row.section != LAWS))
        for network in networks:
            rows = [row for row in self.rows if row.section == network]
            if not any(row.values for row in rows):
                parts.append(f"`{network}`: {', '.join(dict.fromkeys(row.result for row in rows))}")
                continue
            sizes = next((row.values["size"] for row in rows if "size" in row.values), "")
            parts.append(f"`{network}`{f', {sizes}' if sizes else ''}:")
            parts.append(markdown([*SPEEDS, "result"], ([*_speed(row), row.result] for row in rows)))
        return "\n\n".join(parts)

    def _machine(self) -> str:
        hardware, versions = self.facts.get("machine", {}), self.facts.get("versions", {})
        gpus = ", ".join(hardware.get("gpus", ())) or "no GPU"
        parts = [gpus, f"{hardware.get('usable_cores')} cores of {hardware.get('processor')}"]
        parts += [f"{name} {value}" for name, value in versions.items() if value]
        return f"{', '.join(parts)}; `{self.facts.get('command', '')}`"

    def _write(self) -> None:
        document = {
            "finished": self._is_finished,
            "seconds": round(self._budget.used, 1),
            "notes": self.notes,
            **self.facts,
            "rows": [asdict(row) for row in self.rows],
        }
        atomic_write(self._folder / "gpu.json", json.dumps(document, indent=1) + "\n", durable=False)
        title = "# Check of the GPU: laws and speeds"
        atomic_write(self._folder / "gpu.md", f"{title}\n\n{self.markdown()}\n", durable=False)


SPEEDS = {
    "precision": "precision", "XLA": "jit", "images/s": "images_per_second", "ms/step": "milliseconds",
    "peak GPU MiB": "peak_mib", "input wait": "input_wait", "Keras fit, images/s": "keras_images_per_second",
    "× Keras": "against_keras", "PyTorch, images/s": "pytorch_images_per_second", "× PyTorch": "against_pytorch",
    "rounds": "rounds",
}  # fmt: skip
"""Columns of the tables of speeds, and the values that they show."""


def _law(row: Row) -> list[str]:
    values = [shown(row.values.get(name, "")) for name in ("compared", "value", "tolerance")]
    return [row.name, *values, row.result]


def _speed(row: Row) -> list[str]:
    return [shown(row.values.get(name, "")) for name in SPEEDS.values()]


def _printed(row: Row) -> str:
    if row.section == LAWS:
        _, _, value, most, result = _law(row)
        return " ".join(part for part in (value, f"(at most {most})" if most else "", result) if part)
    if row.status != OK:
        return row.result
    values = row.values
    others = [f"{shown(values[key])}× {name}" for name, key in OTHERS.items() if isinstance(values.get(key), float)]
    return f"{shown(values['images_per_second'])} images/s, {shown(values['milliseconds'])} ms/step {' '.join(others)}"


OTHERS = {"Keras": "against_keras", "PyTorch": "against_pytorch"}


def shown(value: Any) -> str:
    """Return a value as a table shows it: numbers with three digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1e}"
