"""Images of a table: the files whose paths are in its columns, next to its other columns."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from stages.data.columns import Column, Described, taken
from stages.data.decode import Decoder
from stages.data.free_memory import memory_for_data
from stages.data.loading import Files, Prepared, Source, feature_of, file_source, read_images
from stages.data.table_source import TableSource, Wide
from stages.errors import UserError
from stages.features.kinds import IMAGES
from stages.reporter import Reporter
from stages.settings.table import TableSettings


def images_of_rows(
    table: TableSource, settings: TableSettings, reporter: Reporter, cache: Path | None
) -> tuple[TableSource, Wide]:
    """Return the rows whose images can all be used, and these images.

    If images are all that there is, in one column, their feature is named as that of every data set of images. Else
    each column of images is a feature of its own.

    Args:
        table: The rows.
        settings: The settings of the table.
        reporter: Receives progress.
        cache: The folder that runs share, for decoded images.

    Raises:
        UserError: If an image cannot be used and is not to be skipped, or none can.
    """
    columns = {column.name: column.feature for column in table.columns if column.kind == "image"}
    is_alone = len(columns) == 1 and not table.used
    sources = {IMAGES if is_alone else name: _paths(table, settings, column) for column, name in columns.items()}
    memory = memory_for_data(settings.memory_gib) / 2**30
    pixels = {name: math.prod(source.image_shape) for name, source in sources.items()}
    prepared = {}
    for name, source in sources.items():
        share = replace(settings, memory_gib=memory * pixels[name] / sum(pixels.values()))
        prepared[name] = read_images(source, share, reporter, cache)
    rows = np.arange(len(table.numbers))
    invalid: dict[int, tuple[str, str]] = {}
    for part in prepared.values():
        for row, example in zip(np.setdiff1d(rows, part.numbers), part.invalid, strict=True):
            invalid.setdefault(int(row), (example.where, example.why))
    skipped = [invalid[row] for row in sorted(invalid)]
    kept = np.delete(rows, [*invalid])
    if not len(kept):
        raise UserError(f"{table.name}: none of the images can be used ({': '.join(skipped[0])})", "valid images")
    original = {feature: column for column, feature in columns.items() if column != feature}
    features = {name: replace(feature_of(one, settings), column=original.get(name)) for name, one in sources.items()}
    described = {name: _described(name, part, kept) for name, part in prepared.items()}
    first = next(iter(sources.values()))
    images = {name: _images(part, kept) for name, part in prepared.items()}
    wide = Wide(images, lambda _: features, described, first.names_of(kept))
    return (table if len(kept) == len(table.numbers) else table.take(kept, skipped)), wide


def _places(prepared: Prepared, rows: np.ndarray) -> np.ndarray:
    """Return where the images of `rows`, int64 [n], are among those that can be used."""
    return np.searchsorted(prepared.numbers, rows)


def _images(prepared: Prepared, rows: np.ndarray) -> Column:
    return prepared.images if len(rows) == len(prepared.numbers) else taken(prepared.images, _places(prepared, rows))


def _described(name: str, prepared: Prepared, rows: np.ndarray) -> Described:
    part = prepared.described.of(_places(prepared, rows))
    return Described(part.digests, {name: part.moments[IMAGES]})


def _paths(table: TableSource, settings: TableSettings, column: str) -> Source:
    """Return the source of the images whose paths are in a column; each row is an example."""
    root, paths = settings.image_root.resolve(), table.of(column)
    rows = {"train": np.arange(len(paths))}
    files = Files(root, [root / path for path in paths], [0] * len(paths), rows, ("a row",))
    decode = Decoder(settings.shape((None, None, 3), column), settings.resize)
    return file_source(files, decode, table.name, lambda row: f"{table.where(row, column)}: {paths[row]!r}")
