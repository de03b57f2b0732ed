"""The report of a test as files: metrics with their intervals and notes, and tables, as CSV and Markdown."""

from pathlib import Path

from stages.metrics.report import Measured
from stages.storage.atomic import atomic_write, write_csv
from stages.tables import markdown, plain_markdown

METRICS = "test_metrics.md"
METRICS_TABLE = "test_metrics.csv"


def write_report(report: Measured, folder: Path) -> tuple[Path, ...]:
    """Write the tables to `folder`; return their paths."""
    rows = [(name, value, *report.intervals.get(name, ("", ""))) for name, value in report.values.items()]
    write_csv(folder / METRICS_TABLE, [("metric", "value", "low", "high"), *rows])
    cells = [(name, *(part if isinstance(part, str) else f"{part:.6g}" for part in parts)) for name, *parts in rows]
    text = f"# Test metrics\n\n{markdown([('metric', 'value', 'low', 'high'), *cells])}\n"
    text += "".join(f"- {plain_markdown(note)}\n" for note in report.notes)
    text += "".join(
        f"\n## {plain_markdown(part.title)}\n\n{markdown(part.shown)}\n- {plain_markdown(part.note)}\n"
        for part in report.sections
    )
    atomic_write(folder / METRICS, text)
    tables = {folder / f"test_{name}.csv": rows for name, rows in report.tables.items()}
    tables |= {folder / f"test_{part.name}.csv": part.rows for part in report.sections}
    for path, table in tables.items():
        write_csv(path, table)
    return folder / METRICS, folder / METRICS_TABLE, *tables
