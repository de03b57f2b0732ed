"""Directories of images or texts with one folder per class."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from stages.data.decode import Decoder
from stages.data.loading import Files, Source, file_source, load
from stages.data.masks import MaskDecoder, classes_of_values
from stages.data.split import Split
from stages.data.splits import cut_classes, dataset_of
from stages.errors import UserError
from stages.features.texts import TextFeature
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.settings.data import ImageFolderSettings, TextFolderSettings
from stages.settings.encodings import not_in_encoding
from stages.settings.folders import (
    IMAGE_SUFFIXES,
    TEXT_SUFFIXES,
    classes_of,
    entries,
    files_below,
    is_example,
    masks_of,
)
from stages.settings.places import regular_file
from stages.tasks.classification import classification

TEXT = "text"
"""Name of the only feature of text files."""


def image_folder(
    settings: ImageFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Return the images below `settings.dir`. Its folders are the classes, in the order of their names.

    Images may be at any depth below the folder of their class. If the directory contains a folder `train`, then this
    and its siblings `val` and `test` (or other names in SPLITS) are the splits, each with the same class folders, and
    missing splits are cut from `train`. Links are followed. Hidden files and folders, leftovers of archives
    (`__MACOSX`) and files of other types are skipped.

    With `settings.masks`, the target of an image is the mask with the same path in that directory, and folders are not
    classes.

    The arguments and the written files are those of `stages.data.loading.load`.
    """
    if settings.mask_folder is not None:
        return load(_with_masks(settings, settings.mask_folder), settings, reporter, folder, cache)
    files = files_of_classes(settings.folder, IMAGE_SUFFIXES, reporter or Reporter())
    source = file_source(files, Decoder(settings.shape((None, None, 3)), settings.resize))
    return load(source, settings, reporter, folder, cache)


def _with_masks(settings: ImageFolderSettings, masks: Path) -> Source:
    """Return the images below `settings.dir` with their masks, ordered by split and path."""
    found = masks_of(settings.folder, masks)
    pairs = [pair for part in found.values() for pair in part]
    ends = np.cumsum([len(part) for part in found.values()])
    parts = {split: np.arange(end - len(found[split]), end) for split, end in zip(found, ends, strict=True)}
    classes, names = classes_of_values(settings.mask_values or {})
    names = names or [str(name) for name in settings.classes or ()]
    decode = Decoder(settings.shape((None, None, 3)), settings.resize)
    paths = [image for image, _ in pairs]
    files = Files(settings.folder, paths, [], parts, tuple(names), [mask for _, mask in pairs])
    return file_source(files, decode, masks=MaskDecoder(decode.image_shape[:2], settings.resize, classes))


def text_folder(
    settings: TextFolderSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Return the texts (`.txt`) below `settings.dir` in memory. The folders are the same as for `image_folder`.

    Raises:
        UserError: If a text cannot be read, there are fewer than two classes, or splits cannot be cut.
    """
    files = files_of_classes(settings.folder, TEXT_SUFFIXES, reporter or Reporter())
    texts = np.array([read_text(path, settings.encoding) for path in files.paths], object)
    targets = np.array(files.labels, np.int32)
    rows = cut_classes(files.root.name, files.parts, targets, files.class_names, settings)
    numbers = np.arange(len(texts))
    whole = Split({TEXT: texts}, targets, numbers=numbers, files=files.names_of(numbers))
    splits = {name: whole.take(part) for name, part in rows.items()}
    features = {TEXT: TextFeature()}
    dataset = dataset_of(files.root.name, splits, classification(files.class_names), features)
    return replace(dataset, record=Record({"held_in": "memory"}), reading={"encoding": settings.encoding})


def files_of_classes(root: Path, suffixes: tuple[str, ...], reporter: Reporter) -> Files:
    """Return the files below `root` that end in one of `suffixes`, ordered by split, class and name.

    Raises:
        UserError: As `stages.settings.folders.classes_of` does.
    """
    splits, names = classes_of(root, suffixes)
    paths: list[Path] = []
    labels: list[int] = []
    parts = {}
    skipped = [
        path for folder in dict.fromkeys([root, *splits.values()]) for path in entries(folder) if not path.is_dir()
    ]
    for split, top in splits.items():
        begin = len(paths)
        for label, name in enumerate(names):
            for path in files_below(top / name):
                (paths if is_example(path, suffixes) else skipped).append(path)
            labels += [label] * (len(paths) - len(labels))
        parts[split] = np.arange(begin, len(paths))
    links = [path for path in skipped if path.is_symlink() and not path.is_file()]
    if links:
        what = "links that point to nothing or to a folder above them"
        reporter.warn(f"{root.name}: skipped {len(links):,} {what}, such as {links[0].relative_to(root)}")
    if count := len(skipped) - len(links):
        ends = ", ".join(suffixes)
        reporter.log(f"{root.name}: ignored {count:,} files that are not in a class folder or do not end in {ends}")
    return Files(root, paths, labels, parts, tuple(names))


def read_text(path: Path, encoding: str) -> str:
    """Return the text of a file.

    Raises:
        UserError: If it cannot be read, or has a different encoding.
    """
    try:
        return regular_file(path).read_text(encoding).removeprefix("\ufeff")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise not_in_encoding(path, encoding) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", "a text file") from error
    except LookupError as error:
        raise UserError(
            f"data.encoding={encoding} is unknown", "an encoding such as utf8 or cp1252", "data.encoding=utf8"
        ) from error
