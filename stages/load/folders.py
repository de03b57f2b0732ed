"""Directories of images, or of texts, with a folder for each class."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from stages.data.convert import SUFFIXES
from stages.data.decode import Decoder
from stages.data.loading import Files, file_source, load
from stages.data.split import Split
from stages.data.splits import cut_classes, dataset_of
from stages.errors import UserError
from stages.features.kinds import Feature
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.settings.data import SPLITS, ImageFolderSettings, TextFolderSettings
from stages.settings.places import regular_file
from stages.settings.table import not_in_encoding
from stages.tasks.classification import Classification

TEXT = "text"
"""Name of the only feature of texts."""


def image_folder(
    settings: ImageFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Returns the images below `settings.dir`, whose folders are the classes, in the order of their names.

    Images may lie at any depth below their class. Where the directory holds a folder `train`, it and its sisters
    `val` and `test`, or others of SPLITS, are the splits, each with the same class folders; a split that is not there
    is cut from `train`. Files and folders that begin with a dot, and files of other kinds, are passed over.

    Arguments and files are those of `stages.data.loading.load`.
    """
    files = files_of_classes(settings.folder, SUFFIXES, reporter or Reporter())
    source = file_source(files, Decoder(settings.shape((None, None, 3)), settings.resize))
    return load(source, settings, reporter, folder, cache)


def text_folder(
    settings: TextFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Returns the texts (`.txt`) below `settings.dir`, whose folders are those of `image_folder`, all in memory.

    Raises:
        UserError: where a text cannot be read, there are no two classes, or splits cannot be cut.
    """
    files = files_of_classes(settings.folder, (".txt",), reporter or Reporter())
    texts = np.array([read_text(path, settings.encoding) for path in files.paths], object)
    targets = np.array(files.labels, np.int32)
    rows = cut_classes(files.root.name, files.parts, targets, files.class_names, settings)
    numbers = np.arange(len(texts))
    whole = Split({TEXT: texts}, targets, numbers=numbers, files=files.names_of(numbers))
    splits = {name: whole.take(part) for name, part in rows.items()}
    features = {TEXT: Feature("text", "string")}
    dataset = dataset_of(files.root.name, splits, Classification(files.class_names), features)
    return replace(dataset, record=Record({"held_in": "memory"}), reading={"encoding": settings.encoding})


def files_of_classes(root: Path, suffixes: tuple[str, ...], reporter: Reporter) -> Files:
    """Returns the files below `root` that end in one of `suffixes`: by splits, then classes, then names.

    Raises:
        UserError: where folders are neither classes nor splits, there are fewer than two classes, or no file.
    """
    splits = _splits(root)
    names = sorted({folder.name for split in splits.values() for folder in _folders(split)})
    if len(names) < 2:
        raise UserError(
            f"data.dir={root} has {len(names)} class folder(s){': ' if names else ''}{', '.join(names)}",
            "a folder for each class, or train/, val/, test/ with those in them",
            "data.dir=<the folder above the class folders>",
        )
    paths: list[Path] = []
    labels: list[int] = []
    parts = {}
    for split, top in splits.items():
        begin = len(paths)
        for label, name in enumerate(names):
            found = [path for path in files_below(top / name) if path.suffix.lower() in suffixes]
            paths += found
            labels += [label] * len(found)
        parts[split] = np.arange(begin, len(paths))
    ends = ", ".join(suffixes)
    if not paths:
        raise UserError(f"data.dir={root} has no file that ends in {ends} in a class folder", "one in each at least")
    passed_over = sum(1 for top in splits.values() for _ in files_below(top)) - len(paths)
    if passed_over:
        reporter.log(f"{root.name}: {passed_over:,} files are passed over: in no class folder, or not ending in {ends}")
    return Files(root, paths, labels, parts, tuple(names))


def _splits(root: Path) -> dict[str, Path]:
    folders = _folders(root)
    are_splits = bool(folders) and all(path.name.casefold() in SPLITS for path in folders)  # Train/ is no class
    if not are_splits and "train" not in {path.name for path in folders}:
        return {"train": root}
    splits = {SPLITS.get(path.name.casefold(), path.name): path for path in folders}
    if not are_splits or "train" not in splits or len(splits) < len(folders):
        raise UserError(
            f"data.dir={root} has {', '.join(f'{path.name}/' for path in folders)}",
            "train/, with val/ and test/ beside it and nothing else, or a folder for each class",
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


def read_text(path: Path, encoding: str) -> str:
    """Returns a file's text; raises UserError where it cannot be read, or is in another encoding."""
    try:
        return regular_file(path).read_text(encoding).removeprefix("\ufeff")  # which some editors begin a file with
    except UnicodeDecodeError as error:
        raise not_in_encoding(path, encoding) from error
    except LookupError as error:
        raise UserError(f"data.encoding={encoding} is unknown", "an encoding", "data.encoding=utf8") from error
