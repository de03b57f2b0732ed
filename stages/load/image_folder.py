"""A directory of pictures, one folder a class."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from stages.errors import UserError
from stages.load.decode import Decoder
from stages.load.loading import load
from stages.load.source import Bad, BadPictureError, Listing
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import ImageFolderSettings

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""Folders that are splits, where one of them is called `train`."""


def image_folder(
    settings: ImageFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Returns the pictures below `settings.dir`, whose folders are the classes, in the order of their names.

    Pictures may lie at any depth below their class. Where the directory holds a folder `train`, it and its sisters
    `val` (or `validation`) and `test` are the splits, each with the same class folders; a split that is not there is
    cut from `train`. Files and folders that begin with a dot, and files of other kinds, are passed over.

    Arguments and files are those of `stages.load.loading.load`.
    """
    return load(ImageFolderSource(settings), settings, reporter, folder, cache)


class ImageFolderSource:
    """Picture files by number: splits in their order, in each the classes, in each the files by name."""

    def __init__(self, settings: ImageFolderSettings) -> None:
        self._root = settings.folder
        self.name = self._root.name
        self.picture = settings.shape((None, None, 3))
        self._decode = Decoder(self.picture, settings.resize, settings.min_side)
        splits = _splits(self._root)
        names = sorted({folder.name for root in splits.values() for folder in _folders(root)})
        if len(names) < 2:
            raise UserError(
                f"data.dir={self._root} has {len(names)} class folder(s){': ' if names else ''}{', '.join(names)}",
                "a folder for each class, or train/, val/, test/ with those in them",
                "data.dir=<the folder above the class folders>",
            )
        self._files: list[Path] = []
        self._labels: list[int] = []
        self._parts: dict[str, list[int]] = {}
        for split, root in splits.items():
            numbers = self._parts.setdefault(split, [])
            for label, name in enumerate(names):
                for path in _pictures(root / name):
                    numbers.append(len(self._files))
                    self._files.append(path)
                    self._labels.append(label)
        self._names = tuple(names)
        self.fingerprint = self._fingerprint()

    def listing(self) -> Listing:
        """Returns the files; a class that has none to train on is bad, and is left out where that is allowed."""
        labels, train = np.array(self._labels, np.int32), np.array(self._parts["train"], np.int64)
        counts = np.bincount(labels[train], minlength=len(self._names))
        empty = [name for name, count in zip(self._names, counts, strict=True) if not count]
        where = self._root / "train" if (self._root / "train").is_dir() else self._root
        bad = tuple(Bad(str(where / name), "a class without a picture to train on") for name in empty)
        new = np.cumsum(counts > 0) - 1
        listing = Listing(
            new[labels].astype(np.int32),
            {name: np.array(numbers, np.int64) for name, numbers in self._parts.items() if numbers},
            tuple(name for name in self._names if name not in empty),
            bad,
        )
        return listing if not empty else self._without(listing, counts[labels] > 0)

    def _without(self, listing: Listing, kept: np.ndarray) -> Listing:
        self._files = [path for path, keep in zip(self._files, kept, strict=True) if keep]
        return listing.only(np.flatnonzero(kept))

    def read(self, number: int) -> np.ndarray:
        try:
            content = self._files[number].read_bytes()
        except OSError as error:
            raise BadPictureError(error.strerror or str(error)) from error
        return self._decode(content)

    def where(self, number: int) -> str:
        return str(self._files[number])

    def _fingerprint(self) -> str:
        content = hashlib.sha256(repr((self._decode.key, self._names)).encode(errors="surrogateescape"))
        for path in self._files:
            found = path.stat()
            line = f"{path.relative_to(self._root)} {found.st_size} {found.st_mtime_ns}\n"
            content.update(line.encode(errors="surrogateescape"))
        return content.hexdigest()[:32]


def _splits(root: Path) -> Mapping[str, Path]:
    folders = {folder.name: folder for folder in _folders(root)}
    if "train" not in folders:
        return {"train": root}
    others = [name for name in folders if name not in SPLITS]
    twice = {"val", "validation"} <= folders.keys()
    if others or twice:
        raise UserError(
            f"data.dir={root} has train/ beside {'val/ and validation/' if twice else f'{others[0]}/'}",
            "train/, val/ (or validation/), test/, and nothing else",
            "data.dir=<a folder with those alone, or with a folder for each class>",
        )
    return {SPLITS[name]: folder for name, folder in folders.items()}


def _folders(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
            yield path
