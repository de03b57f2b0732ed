"""Sizes of images: one for all, or one for each column of images."""

from collections.abc import Mapping, Sequence
from typing import Any

from stages.errors import UserError


def sides_of(size: Any, column: str | None = None) -> Any:
    """Return the size of a column, if sizes are a mapping, as [height, width]; None if it is not set."""
    size = size[column] if isinstance(size, Mapping) else size
    return [size] * 2 if isinstance(size, int) else size


def check_sizes(setting: str, size: Any, columns: Sequence[str]) -> None:
    """Raise UserError for a size that images cannot have.

    Args:
        setting: The name of the setting.
        size: One size for all images, or a mapping from columns.
        columns: The columns of images, which may have sizes of their own.
    """
    fix = f"{setting}=160"
    sizes = {setting: size} if size is not None else {}
    if isinstance(size, Mapping) and columns:
        sizes = {f"{setting}.{column}": one for column, one in size.items()}
        if unknown := next((column for column in size if column not in columns), None):
            problem = f"{setting}: {unknown} is not a column of images"
            raise UserError(problem, f"sizes of {', '.join(columns)}, or one size for all", fix)
        if missing := next((column for column in columns if column not in size), None):
            raise UserError(f"{setting} lacks {missing}, a column of images", "all of them, or one size for all", fix)
    for name, one in sizes.items():
        if not _is_valid(one):
            expected = "a number of pixels from 1 to 8192, or [height, width]"
            raise UserError(f"{name}={one} is not an image size", expected, fix)


def _is_valid(size: Any) -> bool:
    sides = [size] * 2 if isinstance(size, int) else size
    is_pair = isinstance(sides, list) and len(sides) == 2
    return is_pair and all(type(side) is int and 1 <= side <= 8192 for side in sides)
