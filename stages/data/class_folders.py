"""The folders of an image set: which are splits and which are classes, known without reading an image."""

from collections.abc import Iterator
from pathlib import Path

from stages.errors import UserError
from stages.text_names import is_utf8, printable

SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""Folders that are splits, where one of them is called `train`."""


def split_folders(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Returns the folder of each split and the names of the classes in them, each in order.

    Raises:
        UserError: where folders are neither classes nor splits, there are fewer than two classes, or a class
            has a name that is not UTF-8.
    """
    splits = _splits(root)
    names = sorted({folder.name for split in splits.values() for folder in _folders(split)})
    strange = next((name for name in names if not is_utf8(name)), None)
    if strange is not None:
        raise UserError(f"data.dir={root} has a class folder {printable(strange)}, no UTF-8", "folders that are")
    if len(names) < 2:
        raise UserError(
            f"data.dir={root} has {len(names)} class folder(s){': ' if names else ''}{', '.join(names)}",
            "a folder for each class, or train/, val/, test/ with those in them",
            "data.dir=<the folder above the class folders>",
        )
    return splits, names


def _splits(root: Path) -> dict[str, Path]:
    folders = {folder.name: folder for folder in _folders(root)}
    if folders and all(name.casefold() in SPLITS for name in folders):  # Train/ and Test/ are no classes
        by_lower_case = {name.casefold(): folder for name, folder in folders.items()}
        folders = by_lower_case if len(by_lower_case) == len(folders) else folders
        if "train" not in folders:
            raise UserError(
                f"data.dir={root} has {', '.join(f'{folder.name}/' for folder in folders.values())} and no train/",
                "train/, with val/ (or validation/) and test/ beside it, or a folder for each class",
                "data.dir=<a folder with train/ in it>",
            )
    if "train" not in folders:
        return {"train": root}
    unknown = [name for name in folders if name not in SPLITS]
    twice = {"val", "validation"} <= folders.keys()
    if unknown or twice:
        raise UserError(
            f"data.dir={root} has train/ beside {'val/ and validation/' if twice else f'{unknown[0]}/'}",
            "train/, val/ (or validation/), test/, and nothing else",
            "data.dir=<a folder with those alone, or with a folder for each class>",
        )
    splits = {SPLITS[name]: folder for name, folder in folders.items()}
    return {name: splits[name] for name in ("test", "train", "val") if name in splits}


def _folders(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith("."))
