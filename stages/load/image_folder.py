"""Directories of images, with a folder for each class."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stages.data.convert import SUFFIXES
from stages.data.decode import Decoder
from stages.data.loading import load
from stages.data.source import FileSource
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import ImageFolderSettings

SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""Folders that are splits, in any case, where all folders have such names."""


def image_folder(
    settings: ImageFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Returns the images below `settings.dir`, whose folders are the classes, in the order of their names.

    Images may lie at any depth below their class. Where the directory holds a folder `train`, it and its sisters
    `val` (or `validation`) and `test` are the splits, each with the same class folders; a split that is not there is
    cut from `train`. Files and folders that begin with a dot, and files of other kinds, are passed over.

    Arguments and files are those of `stages.data.loading.load`.
    """
    return load(ImageFolderSource(settings), settings, reporter, folder, cache)


class ImageFolderSource(FileSource):
    """Image files by number: splits in their order, in each the classes, in each the files by name."""

    def __init__(self, settings: ImageFolderSettings) -> None:
        splits, class_names = split_folders(settings.folder)
        decode = Decoder(settings.shape((None, None, 3)), settings.resize)
        super().__init__(settings.folder, decode, class_names)
        self.name = self.root.name
        self.parts = {}
        self.passed_over = 0
        for split, root in splits.items():
            begin = len(self.paths)
            for label, name in enumerate(self.class_names):
                images = [path for path in files_below(root / name) if path.suffix.lower() in SUFFIXES]
                self.paths += images
                self.labels += [label] * len(images)
            self.parts[split] = np.arange(begin, len(self.paths))
            self.passed_over += sum(1 for _ in files_below(root)) - len(self.parts[split])
        self.fingerprint = self.digest()


def split_folders(root: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Returns the folder of each split and the names of the classes in them, each in order.

    Raises:
        UserError: where folders are neither classes nor splits, or there are fewer than two classes.
    """
    splits = _splits(root)
    names = sorted({folder.name for split in splits.values() for folder in _folders(split)})
    if len(names) < 2:
        raise UserError(
            f"data.dir={root} has {len(names)} class folder(s){': ' if names else ''}{', '.join(names)}",
            "a folder for each class, or train/, val/, test/ with those in them",
            "data.dir=<the folder above the class folders>",
        )
    return splits, tuple(names)


def _splits(root: Path) -> dict[str, Path]:
    folders = _folders(root)
    are_splits = bool(folders) and all(path.name.casefold() in SPLITS for path in folders)  # Train/ is no class
    if not are_splits and "train" not in {path.name for path in folders}:
        return {"train": root}
    splits = {SPLITS.get(path.name.casefold(), path.name): path for path in folders}
    if not are_splits or "train" not in splits or len(splits) < len(folders):
        raise UserError(
            f"data.dir={root} has {', '.join(f'{path.name}/' for path in folders)}",
            "train/, with val/ (or validation/) and test/ beside it and nothing else, or a folder for each class",
            "data.dir=<a folder with those alone>",
        )
    return {name: splits[name] for name in ("test", "train", "val") if name in splits}


def _folders(root: Path) -> list[Path]:
    return [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files below `folder` in the order of their paths, without hidden ones; links to folders are not
    followed, and links to nothing are files, which cannot be read."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and not path.is_dir() and (path.is_file() or path.is_symlink()):
            yield path
