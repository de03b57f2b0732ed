"""docs/how-it-works/performance.md: the table and the figure of what was measured."""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.measuring import Spread
from benchmarks.page import markdown, put
from benchmarks.processes import ROOT
from benchmarks.recorded import Records
from benchmarks.table import ROWS, Row

PAGE = ROOT / "docs" / "how-it-works" / "performance.md"
FIGURE = ROOT / "docs" / "images" / "performance.png"
PACKAGES = ("tensorflow", "keras", "mlflow", "hydra-core", "numpy")


def processor() -> str:
    """Returns the number of cores and their model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}"


def machine() -> str:
    """Returns the versions and the processor."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{processor()}, Python {platform.python_version()}, {packages}"


def write(records: Records, why_not: Mapping[str, str]) -> None:
    """Writes the table into the page, between its marks, and the figure.

    Args:
        why_not: why a measurement could not be made, by its name.
    """
    put(PAGE, "bench", table(records, why_not))
    draw([(row, records[row.key].spread) for row in ROWS if row.key in records and row.target])


def table(records: Records, why_not: Mapping[str, str]) -> str:
    """Returns the rows as Markdown, with the notes on those that miss their target, and what was not measured."""
    cells = []
    notes: dict[str, list[str]] = {}
    missing = []
    for row in ROWS:
        if row.key not in records:
            missing.append(row)
            continue
        spread = records[row.key].spread
        value = f"**{_number(spread.median)}{_unit(row)}**"
        quartiles = f"{_number(spread.low)} to {_number(spread.high)}"
        rounds, verdict_text = str(spread.rounds), verdict(row, spread.median)
        cells.append([row.name, row.against or "", _target(row), value, quartiles, rounds, verdict_text])
        if not row.is_met(spread.median):
            notes.setdefault(row.note, []).append(f"{row.name}{f', against {row.against}' if row.against else ''}")
    lines = [markdown(["what", "against", "target", "measured", "quartiles", "rounds", ""], cells)]
    if notes:
        lines += ["", "Why some rows miss their target:", ""]
        lines += [f"- {'; '.join(dict.fromkeys(names))}: {note}" for note, names in notes.items()]
    if missing:
        lines += ["", "Not measured here:", ""]
        lines += [f"- {row.key}: {why_not.get(row.measurement, 'left out')}" for row in missing]
    return "\n".join([*lines, "", *_machines(records)])


def _machines(records: Records) -> list[str]:
    """Returns what most rows were measured with and, of each other machine, its rows."""
    machines = [machine for machine, _ in Counter(record.machine for record in records.values()).most_common()]
    lines = machines[:1]
    for machine in machines[1:]:
        keys = [key for key, record in records.items() if record.machine == machine]
        lines += ["", f"Measured with {machine}: {'; '.join(keys)}"]
    return lines


def verdict(row: Row, value: float) -> str:
    """Returns whether the target is met, or by how much it is not."""
    if row.target is None:
        return ""
    if row.is_met(value):
        return "met"
    missed = 100 * abs(value / row.target - 1)
    return f"missed by {missed:.0f}%" if missed >= 1 else f"missed by {missed:.1g}%"


def draw(rows: Sequence[tuple[Row, Spread]]) -> None:
    """Draws every row's value over its target, so that better is further to the right, with its quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.26 * len(rows) + 1.2), layout="constrained")
    for place, (row, spread) in enumerate(reversed(rows)):
        assert row.target is not None
        low, middle, high = sorted(_reached(row, value) for value in (spread.low, spread.median, spread.high))
        color = "#2a7f62" if middle >= 1 else "#c1502e"
        axes.plot([low, high], [place, place], color=color, linewidth=3, solid_capstyle="round", alpha=0.45)
        axes.plot(middle, place, "o", color=color)
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.margins(y=0.01)
    axes.set_yticks(range(len(rows)), [row.key for row, _ in reversed(rows)], fontsize=7)
    figure.supxlabel("measured over target: met right of 1×; median and quartiles", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(FIGURE, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _reached(row: Row, value: float) -> float:
    assert row.target is not None
    return value / row.target if row.at_least is not None else row.target / value


def _target(row: Row) -> str:
    sign = "≥" if row.at_least is not None else "≤"
    return "" if row.target is None else f"{sign} {row.target:g}{_unit(row)}"


def _unit(row: Row) -> str:
    return {"×": "×", "exponent": ""}.get(row.unit, f" {row.unit}")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 0.995 or value >= 1.2 else f"{value:.3f}"
