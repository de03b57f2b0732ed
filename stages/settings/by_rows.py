"""Settings of a training on a table that follow from the number of its rows."""

import gzip
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.settings.data import FRACTIONS
from stages.settings.headers import names_in
from stages.settings.npz import layout_in
from stages.settings.table import TableSettings
from stages.settings.table_files import files_of, format_of

STEPS = 2000
"""About how many steps a training takes, if that is between 10 and 100 epochs."""

UNKNOWN_ROWS = 10_000
"""Rows that are assumed if the files cannot be read. The error for them is reported where they are checked."""

COUNTED = 2**26
"""Bytes of a text file in which lines are counted. The number in a larger file is estimated from these."""


PLAIN: Mapping[str, Any] = {
    "batch_size": 64, "epochs": 30, "calibrate": False, "learning_rate": 0.002,
    "weight_decay": 0.0, "warmup_epochs": 0.0, "final_share": 1.0,
}  # fmt: skip
"""Settings for tables whose only features are texts or images: those that texts and images have elsewhere."""


def settings_by_rows(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a training on a table.

    Batches grow with the table, from 32 to 256 rows, and the number of epochs makes about STEPS steps of them. Tables
    with fewer rows than that have smaller batches.

    Args:
        data: The settings of the table.
    """
    if not has_columns(data):
        return PLAIN
    rows = max(training_rows(data), 1)
    batch_size = min(max(2 ** round(math.log2(rows / 64)), 32), 256, 2 ** int(math.log2(rows)))
    epochs = min(max(round(STEPS * batch_size / rows), 10), 100)
    return {
        "batch_size": batch_size,
        "epochs": epochs,
        "calibrate": True,
        "learning_rate": 0.003,
        "weight_decay": 0.0003,
        "warmup_epochs": 1.0,
        "final_share": 0.0,
    }


def has_columns(data: Mapping[str, Any]) -> bool:
    """Return whether a table has features that are not declared as texts or images."""
    features = data.get("features")
    declared = {str(name): str(kind) for name, kind in features.items()} if isinstance(features, Mapping) else {}
    if "image" in declared.values() and data.get("only_images", True):
        return False
    if not {"text", "image"} & {*declared.values()}:
        return True
    target = data.get("target")
    used: list[Any] = [target] if isinstance(target, str) else [*(target or ())]
    used += [data.get(role) for role in ("weight", "split_column", "group", "time")]
    try:
        path = _files(data)[0]
        names, _, _ = names_in(path, format_of(path), data.get("delimiter"), str(data.get("encoding", "utf8")))
    except (UserError, IndexError, KeyError, TypeError, OSError):
        return False
    return any(declared.get(name) not in ("text", "image", "leave_out") for name in names if name not in used)


def is_mixed(data: TableSettings) -> bool:
    """Return whether a table has images next to other features, which may be more images."""
    has_texts = "text" in data.declared.values()
    return bool(data.images) and (len(data.images) > 1 or has_texts or has_columns(vars(data)))


def _files(data: Mapping[str, Any]) -> list[Path]:
    """Return the files with training rows."""
    files = data.get("files")
    part: Any = files["train"] if isinstance(files, Mapping) else files
    return files_of(part if isinstance(part, str) else [str(file) for file in part])


def training_rows(data: Mapping[str, Any]) -> int:
    """Return the number of training rows, for large text files about this number.

    Args:
        data: Settings of a table: `files`, and the fractions of the splits that are cut from the training rows.
    """
    files = data.get("files")
    by_split = files if isinstance(files, Mapping) else {"train": files}
    try:
        rows = sum(_rows(path, *_version(path)) for path in _files(data))
    except (UserError, KeyError, TypeError, OSError):
        return UNKNOWN_ROWS
    given = {name: data.get(f"{name}_fraction", 0.0) for name in FRACTIONS if name not in by_split}
    held_out = [FRACTIONS[name] if part is None else float(part) for name, part in given.items()]
    return round(rows * math.prod(1 - fraction for fraction in held_out))


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1024)  # jobs of a sweep ask again and again
def _rows(path: Path, size: int, changed: int) -> int:
    """Return the number of rows of a file, without its header; blank lines and lines in quotes count, too."""
    if format_of(path) == "csv":
        is_packed = path.suffix == ".gz"
        with path.open("rb") as raw, gzip.open(raw) if is_packed else raw as file:
            lines, done, last = 0, 0, b"\n"
            while done < COUNTED and (block := file.read(2**20)):
                lines, done, last = lines + block.count(b"\n"), done + len(block), block[-1:]
            read = raw.tell()
        if done >= COUNTED and read < size:
            return round(lines * size / read)
        return max(lines + (last != b"\n") - 1, 0)
    if format_of(path) == "npz":
        layout = layout_in(path)
        return layout.series * layout.steps
    import pyarrow.dataset  # takes most of a second to import

    return int(pyarrow.dataset.dataset(path, format=format_of(path)).count_rows())
