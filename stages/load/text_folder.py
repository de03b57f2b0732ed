"""Directories of texts, with a folder for each class."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from stages.data.split import Split
from stages.data.splits import cut_classes, dataset_of
from stages.errors import UserError
from stages.features.kinds import Feature
from stages.load.image_folder import files_below, split_folders
from stages.reporter import Reporter, Silent
from stages.results import Dataset
from stages.settings.data import TextFolderSettings
from stages.settings.places import regular_file
from stages.settings.table import not_in_encoding
from stages.tasks.classification import Classification

TEXT = "text"
"""Name of the only feature."""

SUFFIX = ".txt"
"""End of the names of texts."""


def text_folder(
    settings: TextFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Returns the texts below `settings.dir`, whose folders are the classes, in the order of their names.

    Folders are those of `stages.load.image_folder.image_folder`; the texts are all in memory.

    Raises:
        UserError: where a text cannot be read, there are no two classes, or splits cannot be cut.
    """
    root = settings.folder
    folders, names = split_folders(root)
    texts: list[str] = []
    labels: list[int] = []
    files: list[str] = []
    rows: dict[str, np.ndarray] = {}
    passed_over = 0
    for split, top in folders.items():
        begin = len(texts)
        for label, name in enumerate(names):
            for path in files_below(top / name):
                if path.suffix.lower() != SUFFIX:
                    passed_over += 1
                    continue
                texts.append(_text(path, settings.encoding))
                labels.append(label)
                files.append(os.fsencode(path.relative_to(root).as_posix()).decode(errors="backslashreplace"))
        rows[split] = np.arange(begin, len(texts))
    if passed_over:
        (reporter or Silent()).log(f"{root.name}: {passed_over:,} files do not end in {SUFFIX}, and are passed over")
    targets = np.array(labels, np.int32)
    rows = cut_classes(root.name, rows, targets, names, settings)
    column = np.array(texts, object)
    splits = {
        name: Split({TEXT: column[part]}, targets[part], numbers=part, files=[files[row] for row in part])
        for name, part in rows.items()
    }
    dataset = dataset_of(root.name, splits, Classification(names), {TEXT: Feature("text", "string")})
    params = {**dataset.record.params, "held_in": "memory", "data/passed_over": passed_over}
    return replace(dataset, record=replace(dataset.record, params=params))


def _text(path: Path, encoding: str) -> str:
    try:
        return regular_file(path).read_text(encoding).removeprefix("\ufeff")  # which some editors begin a file with
    except UnicodeDecodeError as error:
        raise not_in_encoding(path, encoding, str(path)) from error
    except LookupError as error:
        raise UserError(f"data.encoding={encoding} is unknown", "an encoding", "data.encoding=utf8") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})", "a text") from error
