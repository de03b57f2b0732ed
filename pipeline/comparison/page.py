"""The comparison as one HTML page that needs nothing else: no network, light and dark, sortable, with its plots."""

import io
import re
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.comparison.answer import choice, run_it, sentences
from pipeline.comparison.columns import columns_of, difference_text, p_text, speed_text
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.plots import ON_DARK, PRINT, Colors, Figures, draw
from pipeline.comparison.tables import as_csv, best_mark, markdown, unfinished_line
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --panel: #f6f8fa; %s }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --panel: #161b22; %s } }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
pre { overflow-x: auto; } h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.choice { background: var(--panel); border-left: 4px solid var(--row0); padding: .6rem 1rem; font-weight: 600; }
.warning { background: var(--panel); border-left: 4px solid var(--row1); padding: .4rem 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; } td, th { padding: .25rem .7rem; border-bottom: 1px solid var(--grid); }
td { text-align: right; white-space: nowrap; } th { text-align: left; }
thead th { vertical-align: bottom; } th.number { text-align: right; }
thead button { all: unset; cursor: pointer; font-weight: 600; } thead button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\25b2"; }
th[aria-sort=descending] button::after { content: " \\25bc"; }
tr.best { background: var(--panel); font-weight: 600; }
figure { margin: 1rem 0; } svg { max-width: 100%%; height: auto; }
dt { font-weight: 600; } dd { margin: 0 0 .3rem 1.5rem; }
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)], [p, q] = [parseFloat(x), parseFloat(y)];
      if (isNaN(p) || isNaN(q)) return isNaN(p) && isNaN(q) ? x.localeCompare(y) : isNaN(p) ? 1 : -1;
      return up ? p - q : q - p;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}
"""

Cell = tuple[str, float | str | None]
"""Text, and the value that it is sorted by; None: its text."""


def page(comparison: Comparison, figures: Figures | None = None) -> str:
    """Returns the page as HTML.

    Args:
        figures: of the comparison; None: they are drawn here.
    """
    figures = figures or draw(comparison)
    title = f"Comparison of {comparison.title}"
    body = [f"<h1>{escape(title)}</h1>", f'<p class="choice">{escape(choice(comparison))}</p>']
    body += [f"<pre>{escape(command)}</pre>"] if (command := run_it(comparison)) else []
    body += [f'<p class="warning">Warning: {escape(line)}</p>' for line in comparison.warnings]
    body += _list(sentences(comparison))
    if comparison.rows:
        body += ["<h2>Settings</h2>", _rows_table(comparison), *_explanations(comparison)]
    for heading, text, figure in (
        ("Accuracy against speed", _described_speed(comparison), figures.speed),
        ("Learning curves", "Metrics of each epoch, a panel a metric and a line a run.", figures.curves),
    ):
        if figure is not None:
            body += [f"<h2>{heading}</h2>", _figure(figure, heading, text)]
    if comparison.unfinished:
        body += ["<h2>Not finished</h2>", *_list([unfinished_line(run) for run in comparison.unfinished])]
    if any(len(row.runs) > 1 for row in comparison.rows):
        body += ["<h2>Runs</h2>", _runs_table(comparison)]
    style = _STYLE % (_declared(PRINT), _declared(ON_DARK))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _rows_table(comparison: Comparison) -> str:
    columns = columns_of(comparison)
    first = [column for column in columns if column.key.startswith(("val/", "test/"))][:2]
    rest = [column for column in columns if column not in first]
    with_differences = bool(comparison.differences)
    header = [*comparison.names, "n", *(column.heading for column in first)]
    header += ["test % − baseline's (95 %)", "McNemar's p"] if with_differences else []
    header += ["speed (95 %)"] if len(comparison.rows) > 1 else []
    header += [column.heading for column in rest]
    rows: list[tuple[str, list[Cell]]] = []
    for row in comparison.rows:
        cells: list[Cell] = [(row.settings.get(name, ""), None) for name in comparison.names]
        cells += [(str(len(row.runs)), len(row.runs)), *((column.text(row), column.value(row)) for column in first)]
        difference = comparison.differences.get(row)
        if with_differences:
            cells.append((difference_text(comparison, row), difference.difference if difference else None))
            cells.append((p_text(difference.p) if difference else "", difference.p if difference else None))
        if len(comparison.rows) > 1:
            speed = comparison.speeds.get(row)
            cells.append((speed_text(comparison, row), speed.ratio if speed else None))
        cells += [(column.text(row), column.value(row)) for column in rest]
        rows.append(("best" if row is comparison.best and len(comparison.rows) > 1 else "", cells))
    several = len(comparison.rows) > 1
    caption = "Runs that differ by seed alone are one row: mean ± standard deviation."
    caption += f" The {best_mark(comparison)} row is highlighted." if comparison.best is not None and several else ""
    if comparison.baseline is not None and several:
        caption += f" Baseline: {comparison.baseline.label}."
    return _table(caption, header, rows, len(comparison.names))


def _runs_table(comparison: Comparison) -> str:
    columns = [column for column in columns_of(comparison) if "/" in column.key or column.key == "seconds"]
    rows: list[tuple[str, list[Cell]]] = []
    for row in comparison.rows:
        for run in row.runs:
            cells: list[Cell] = [(run.folder.name, None), (run.seed or "", None)]
            for column in columns:
                value = run.seconds if column.key == "seconds" else run.metrics.get(column.key)
                cells.append(("" if value is None else column.written(value), value))
            rows.append(("", cells))
    return _table("Each run by itself.", ["run", "seed", *(column.heading for column in columns)], rows, 1)


def _table(caption: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]], heads: int) -> str:
    lines = [f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>']
    for number, name in enumerate(header):
        kind = "" if number < heads else ' class="number"'
        lines.append(f'<th scope="col"{kind}><button type="button">{escape(name)}</button></th>')
    lines.append("</tr></thead><tbody>")
    for kind, cells in rows:
        lines.append(f'<tr class="{kind}">' if kind else "<tr>")
        for number, (text, value) in enumerate(cells):
            tag, scope = ("th", ' scope="row"') if number < heads else ("td", "")
            data = "" if value is None else f' data-value="{escape(str(value))}"'
            lines.append(f"<{tag}{scope}{data}>{escape(text)}</{tag}>")
        lines.append("</tr>")
    return "".join([*lines, "</tbody></table></div>"])


def _explanations(comparison: Comparison) -> list[str]:
    columns = columns_of(comparison)
    lines = ["<details><summary>Meaning of the columns</summary><dl>"]
    lines += [f"<dt>{escape(column.heading)}</dt><dd>{escape(column.explained)}</dd>" for column in columns]
    if comparison.differences:
        lines.append(
            "<dt>test % − baseline's (95 %)</dt><dd>difference in test accuracy, in points, with its interval over "
            "test examples, and over seeds where there are several</dd>"
            "<dt>McNemar's p</dt><dd>how likely so uneven a disagreement is, if both are correct equally often</dd>"
        )
        if len(comparison.differences) > 3:
            lines.append(
                f"<dt>{len(comparison.differences)} comparisons</dt><dd>Of twenty differences that are none, one "
                "interval on average excludes 0.</dd>"
            )
    return [*lines, "</dl></details>"]


def _described_speed(comparison: Comparison) -> str:
    text = (
        "Each setting by its speed and its accuracy. The dashed line, the Pareto front, joins those that no other beats"
    )
    bars = " Bars are a standard deviation over seeds." if any(len(row.runs) > 1 for row in comparison.rows) else ""
    return f"{text} in both.{bars}"


def _figure(figure: "Figure", title: str, text: str) -> str:
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    slug = title.lower().replace(" ", "-")
    svg = re.sub(r'\bid="', f'id="{slug}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{slug}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for name, color in _named(PRINT).items():  # the page has others in the dark
        svg = svg.replace(color, f"var(--{name})")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>"


def _named(colors: Colors) -> dict[str, str]:
    rows = {f"row{number}": color for number, color in enumerate(colors.rows)}
    return {"ink": colors.ink, "grid": colors.grid, "others": colors.others, **rows}


def _declared(colors: Colors) -> str:
    return " ".join(f"--{name}: {color};" for name, color in _named(colors).items())


def _list(lines: Sequence[str]) -> list[str]:
    return ["<ul>", *(f"<li>{escape(line)}</li>" for line in lines), "</ul>"] if lines else []


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes `comparison.md`, `.csv`, `.html` and, where there is something to draw, `.png` (accuracy against speed)
    and `.curves.png` (learning curves); returns their paths.
    """
    paths = []
    figures = draw(comparison)
    html = page(comparison, figures)
    for suffix, content in (("md", markdown(comparison)), ("csv", as_csv(comparison)), ("html", html)):
        path = folder / f"comparison.{suffix}"
        atomic_write(path, content, durable=False)
        paths.append(path)
    for name, figure in (("comparison.png", figures.speed), ("comparison.curves.png", figures.curves)):
        if figure is not None:
            path = folder / name
            atomic_write(path, partial(figure.savefig, dpi=120), durable=False)
            paths.append(path)
    return paths
