"""The comparison as one HTML page that needs nothing else, light and dark; and all its files."""

import base64
import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.comparison import answer
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.frame import columns_of
from pipeline.comparison.plots import Figures, draw
from pipeline.comparison.rows import Row
from pipeline.comparison.tables import as_csv, best_mark, markdown
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html")


def page(comparison: Comparison, figures: Figures | None = None) -> str:
    """Return the page as HTML.

    Args:
        figures: of the comparison; None: they are drawn here.
    """
    import jinja2

    figures = figures or draw(comparison)
    columns = [column for column in columns_of(comparison) if column.heading]
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return template.from_string(TEMPLATE.read_text("utf-8")).render(
        comparison=comparison,
        answer=answer,
        mark=best_mark(comparison),
        columns=columns,
        unfinished=[answer.unfinished_line(run) for run in comparison.unfinished],
        has_repeats=any(len(row.runs) > 1 for row in comparison.rows),
        of_runs=[column for column in columns if "/" in column.key or column.key == "seconds"],
        single=lambda run: Row({}, (run,)),
        images=[
            (title, _image(figure))
            for title, figure in (("Accuracy against speed", figures.speed), ("Learning curves", figures.curves))
            if figure is not None
        ],
    )


def _image(figure: "Figure") -> str:
    """Return the address of a figure that the page itself holds."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "comparison", "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.md`, `.csv`, `.html` and, where there is something to draw, `.png` (accuracy against speed)
    and `.curves.png` (learning curves); return their paths.
    """
    figures = draw(comparison)
    texts = {"md": markdown(comparison), "csv": as_csv(comparison), "html": page(comparison, figures)}
    drawn = {"png": figures.speed, "curves.png": figures.curves}
    contents: dict[str, Any] = {
        **texts,
        **{suffix: partial(f.savefig, dpi=120) for suffix, f in drawn.items() if f is not None},
    }
    for suffix, content in contents.items():
        atomic_write(folder / f"comparison.{suffix}", content, durable=False)
    return [folder / f"comparison.{suffix}" for suffix in contents]
