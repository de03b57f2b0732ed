"""docs/how-it-works/performance.md: the table and the figure of what was measured."""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measuring import Spread
from benchmarks.page import markdown, put
from benchmarks.processes import ROOT
from benchmarks.recorded import Records
from benchmarks.table import ROWS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = ROOT / "docs" / "how-it-works" / "performance.md"
FIGURE = ROOT / "docs" / "images" / "performance.png"
MET, MISSED = "#2a7f62", "#c1502e"
PACKAGES = ("tensorflow", "keras", "mlflow", "hydra-core", "numpy")


def processor() -> str:
    """Return the number of cores and their model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}"


def machine() -> str:
    """Return the versions and the processor."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{processor()}, Python {platform.python_version()}, {packages}"


def write(records: Records, why_not: Mapping[str, str]) -> None:
    """Write the table into the page, between its marks, and the figure.

    Args:
        why_not: why a measurement could not be made, by its name.
    """
    put(PAGE, "bench", table(records, why_not))
    draw([(row, records[row.key].spread) for row in ROWS if row.key in records and row.target])


def table(records: Records, why_not: Mapping[str, str]) -> str:
    """Return the rows as Markdown, with the notes on those that miss their target, and what was not measured."""
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
    lines = [markdown(["what", "against", "target", "measured", "quartiles", "rounds", "result"], cells)]
    if notes:
        count = _count([(row, records[row.key].spread) for row in ROWS if row.key in records])
        lines += ["", f"{count} Why the other rows miss theirs:", ""]
        lines += [f"- {'; '.join(dict.fromkeys(names))}: {note}" for note, names in notes.items()]
    if missing:
        lines += ["", "Not measured here:", ""]
        lines += [f"- {row.key}: {why_not.get(row.measurement, 'left out')}" for row in missing]
    return "\n".join([*lines, "", *_machines(records)])


def _machines(records: Records) -> list[str]:
    """Return what most rows were measured with and, of each other machine, its rows."""
    machines = [machine for machine, _ in Counter(record.machine for record in records.values()).most_common()]
    lines = machines[:1]
    for machine in machines[1:]:
        keys = [key for key, record in records.items() if record.machine == machine]
        lines += ["", f"Measured with {machine}: {'; '.join(keys)}"]
    return lines


def verdict(row: Row, value: float) -> str:
    """Return whether the target is met, or by how much it is not."""
    if row.target is None:
        return ""
    if row.is_met(value):
        return "met"
    missed = 100 * abs(value / row.target - 1)
    return f"missed by {missed:.0f}%" if missed >= 1 else f"missed by {missed:.1g}%"


def draw(rows: Sequence[tuple[Row, Spread]]) -> "Figure":
    """Draw each value relative to its target with its quartiles; further to the right is better. Return the figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10.5, 0.26 * len(rows) + 1.8), layout="constrained")
    for place, (row, spread) in enumerate(reversed(rows)):
        low, middle, high = sorted(_reached(row, value) for value in (spread.low, spread.median, spread.high))
        color = MET if middle >= 1 else MISSED
        axes.plot([low, high], [place, place], color=color, linewidth=3, solid_capstyle="round", alpha=0.45)
        axes.plot(middle, place, "o", color=color)
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: "target" if value == 1 else f"{value:g}×")
    axes.margins(y=0.01)
    axes.set_yticks(range(len(rows)), [_label(row) for row, _ in reversed(rows)], fontsize=7)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("measured value relative to its target (right of the line: better than the target)", fontsize=8)
    figure.suptitle(
        f"Speed and cost of this project, relative to the targets it sets itself\n{_count(rows)}", fontsize=10
    )
    for label, style in (
        ("median meets the target", {"color": MET, "marker": "o", "linestyle": ""}),
        ("median misses the target", {"color": MISSED, "marker": "o", "linestyle": ""}),
        ("quartiles over the rounds", {"color": "gray", "linewidth": 3, "alpha": 0.45}),
    ):
        axes.plot([], [], label=label, **style)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(FIGURE, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return figure


def _count(rows: Sequence[tuple[Row, Spread]]) -> str:
    """Return a sentence with the number of targets, and of those that are met."""
    targets = [row.is_met(spread.median) for row, spread in rows if row.target is not None]
    return f"{sum(targets)} of {len(targets)} targets are met."


def _label(row: Row) -> str:
    """Return a row's label in the figure, in which Markdown is not rendered."""
    return (row.name if row.against is None else f"{row.name}, compared with {row.against}").replace("`", "")


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
