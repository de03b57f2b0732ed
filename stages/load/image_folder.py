"""Directories of images, with a folder for each class."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stages.data.class_folders import split_folders
from stages.data.convert import SUFFIXES, InvalidImageError
from stages.data.decode import Decoder
from stages.data.loading import load
from stages.data.source import EncodedSource, Invalid, Listing
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import ImageFolderSettings
from stages.settings.places import regular_file
from stages.text_names import printable


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


class ImageFolderSource(EncodedSource):
    """Image files by number: splits in their order, in each the classes, in each the files by name."""

    def __init__(self, settings: ImageFolderSettings) -> None:
        self._root = settings.folder
        self.name = self._root.name
        self.image_shape = settings.shape((None, None, 3))
        self.decode = decode = Decoder(self.image_shape, settings.resize, settings.min_side)
        self._splits, names = split_folders(self._root)
        passed_over: Counter[str] = Counter()
        for folder in {self._root, *self._splits.values()}:
            passed_over.update(_not_in_classes(folder))
        self._files: list[Path] = []
        self._labels: list[int] = []
        self._parts: dict[str, list[int]] = {}
        for split, root in self._splits.items():
            numbers = self._parts.setdefault(split, [])
            for label, name in enumerate(names):
                for path in _images(root / name, passed_over):
                    numbers.append(len(self._files))
                    self._files.append(path)
                    self._labels.append(label)
        self._listed = self._files
        self._names = tuple(names)
        self.passed_over = dict(passed_over.most_common())
        self.warnings = tuple(_look_alike(names))
        self.fingerprint = self._fingerprint(decode.key)

    def listing(self) -> Listing:
        """Returns the files; a class without training images is invalid, and left out where that is allowed.

        Raises:
            UserError: where fewer than two classes have training images, or a folder of a split has none.
        """
        for name, numbers in self._parts.items():
            if name != "train" and not numbers:
                raise UserError(
                    f"data.dir={self._root} has {self._splits[name].name}/ without an image in a class folder",
                    f"files that end in {', '.join(SUFFIXES)}, or no such folder: the split is then cut from train/",
                )
        labels = np.array(self._labels, np.int32)
        train = np.array(self._parts["train"], np.int64)
        counts = np.bincount(labels[train], minlength=len(self._names))
        empty = [name for name, count in zip(self._names, counts, strict=True) if not count]
        if len(self._names) - len(empty) < 2:
            raise UserError(
                f"data.dir={self._root} has images to train on for {len(self._names) - len(empty)} of "
                f"{len(self._names)} classes; {empty[0]} has none",
                f"two classes or more with files that end in {', '.join(SUFFIXES)}",
            )
        invalid = tuple(
            Invalid(
                str(self._class_folder(name)),
                "a class without an image to train on",
                "images of every class to train on",
            )
            for name in empty
        )
        renumbered = np.cumsum(counts > 0) - 1
        listing = Listing(
            renumbered[labels].astype(np.int32),
            {name: np.array(numbers, np.int64) for name, numbers in self._parts.items()},
            tuple(name for name in self._names if name not in empty),
            invalid,
        )
        return listing if not empty else self._without(listing, counts[labels] > 0)

    def _class_folder(self, name: str) -> Path:
        """Returns the folder of the class in the first split that has one."""
        folders = (self._splits[split] / name for split in ("train", "val", "test") if split in self._splits)
        return next(folder for folder in folders if folder.is_dir())

    def _without(self, listing: Listing, usable: np.ndarray) -> Listing:
        self._files = [path for path, keep in zip(self._files, usable, strict=True) if keep]
        return listing.only(np.flatnonzero(usable))

    def content(self, number: int) -> bytes:
        try:
            return regular_file(self._files[number]).read_bytes()
        except OSError as error:
            raise InvalidImageError(error.strerror or str(error)) from error

    def where(self, number: int) -> str:
        return str(self._files[number])

    def file(self, number: int) -> str | None:
        return printable(self._listed[number].relative_to(self._root).as_posix())

    def _fingerprint(self, key: str) -> str:
        content = hashlib.sha256(repr((key, self._names)).encode(errors="surrogateescape"))
        for path in self._files:
            try:
                status = path.stat()
            except OSError:  # a link to nothing, which reading will report
                status = path.lstat()
            line = f"{path.relative_to(self._root)} {status.st_size} {status.st_mtime_ns}\n"
            content.update(line.encode(errors="surrogateescape"))
        return content.hexdigest()[:32]


def _look_alike(names: Sequence[str]) -> Iterator[str]:
    """Yields a warning for each group of names that are different classes but look the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), []).append(name)
    for group in groups.values():
        if len(group) > 1:
            yield (
                f"the class folders {' and '.join(map(repr, group))} differ by case, blanks or code points alone, "
                f"and are {len(group)} classes: rename them where they are meant to be one"
            )


def _not_in_classes(folder: Path) -> Iterator[str]:
    """Yields the kind of each file next to the folders of classes or splits."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            yield "hidden"
        elif not path.is_dir():
            yield "outside the class folders"


def _images(folder: Path, passed_over: Counter[str]) -> Iterator[Path]:
    """Yields the images below `folder`, including broken links, which cannot be read; counts other files by kind."""
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_dir():
            if path.is_symlink():
                passed_over["links to folders"] += 1
        elif hidden:
            passed_over["hidden"] += 1
        elif path.suffix.lower() not in SUFFIXES:
            passed_over[path.suffix.lower() or "without a suffix"] += 1
        elif path.is_file() or path.is_symlink():
            yield path
        else:
            passed_over["neither files nor folders"] += 1
