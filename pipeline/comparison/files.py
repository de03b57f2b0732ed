"""The files of a comparison: Markdown, CSV, an HTML page, and plots as PNG."""

from functools import partial
from pathlib import Path

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.page import page
from pipeline.comparison.plots import draw
from pipeline.comparison.tables import as_csv, markdown
from stages.storage.atomic import atomic_write


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
