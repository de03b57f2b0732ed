"""Tables in documents: each stands between two marks, `<!-- name:begin -->` and `<!-- name:end -->`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def put(page: Path, name: str, text: str) -> None:
    """Write `text` into `page`, in place of what stands between the marks of `name`.

    Raises:
        ValueError: where the page does not have them once.
    """
    marks = rf"(<!-- {re.escape(name)}:begin[^>]*-->\n).*?(<!-- {re.escape(name)}:end -->)"
    before = page.read_text()
    changed, count = re.subn(marks, lambda found: f"{found[1]}\n{text}\n\n{found[2]}", before, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} has the marks of {name} {count} times")
    page.write_text(changed)
