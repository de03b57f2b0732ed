"""Folders of prepared TFDS sets, read by their JSON alone: version, splits and features, without TensorFlow."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.settings.data import TfdsSettings
from stages.settings.places import regular_file

INFO, FEATURES = "dataset_info.json", "features.json"
UNSUPPORTED = {
    "BBoxFeature": "detection (bounding boxes) is not supported",
    "LabeledImage": "segmentation (an image of labels) is not supported",
    "Video": "video is not supported",
    "Audio": "audio is not supported",
    "Translation": "text is not supported",
    "Text": "text is not supported",
}
"""From a kind of feature to why a set with it, but without one image and one label, cannot be trained on."""

ALLOWED = "one Image of uint8 and one ClassLabel of two classes or more for each example"
_SPLIT = re.compile(r"\s*([\w-]+)\s*(\[[^\]]*\])?\s*(\([^)]*\))?\s*")


@dataclass(frozen=True)
class Feature:
    """A feature of features.json.

    kind: the name of its class in TFDS, such as `ClassLabel`. content: its description.
    """

    kind: str
    content: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of an Image: (H, W, C), each None where images differ."""
        dimensions = self.content.get("shape") or ()
        sides = dimensions.get("dimensions", ()) if isinstance(dimensions, Mapping) else dimensions
        shape = tuple(int(side) if str(side).isdecimal() else None for side in sides)  # null, -1: sizes differ
        return shape if len(shape) == 3 else (None, None, 3)

    @property
    def dtype(self) -> str:
        return str(self.content.get("dtype", "uint8")).rpartition(".")[2]

    @property
    def classes(self) -> int:
        """Of a ClassLabel."""
        return int(self.content.get("numClasses") or self.content.get("num_classes") or 0)

    @property
    def inner(self) -> Mapping[str, Any]:
        """Of a FeaturesDict or a Sequence: from names to their entries in features.json."""
        if self.kind == "FeaturesDict":
            features = self.content.get("features", self.content)
        else:
            features = {"": self.content.get("feature", {})}
        return features if isinstance(features, Mapping) else {}


@dataclass(frozen=True)
class TfdsFolder:
    """A prepared set. info: its dataset_info.json."""

    path: Path
    info: Mapping[str, Any]
    features: Mapping[str, Any]

    @property
    def splits(self) -> Mapping[str, int]:
        """From the name of each split to its number of examples."""
        return {
            str(split["name"]): sum(int(length) for length in split.get("shardLengths", ()))
            for split in self.info.get("splits", ())
        }

    @property
    def file_format(self) -> str:
        return str(self.info.get("fileFormat") or "tfrecord")

    @property
    def supervised(self) -> tuple[str, ...]:
        """The names of the input and the label that the set declares; empty where it declares none."""
        keys = self.info.get("supervisedKeys") or {}
        items = (keys.get("tuple") or {}).get("items", ()) if isinstance(keys, Mapping) else ()
        return tuple(str(item.get("featureKey", "")) for item in items)


def find(settings: TfdsSettings) -> Path | None:
    """Returns the folder of the newest prepared version, or None where there is none.

    Raises:
        UserError: where the set has several configurations, and none was chosen.
    """
    name, _, version = settings.name.partition(":")
    folders = [path.parent for path in (settings.folder / name).glob(f"**/{INFO}")]
    pattern = re.escape(version) if version else r"\d+\.\d+\.\d+"  # excludes the leftovers of a killed preparation
    folders = [path for path in folders if re.fullmatch(pattern, path.name)]
    configs = sorted({str(path.parent.relative_to(settings.folder)) for path in folders})
    if len(configs) > 1:
        raise UserError(f"data.name={settings.name} has several configurations", configs, f"data.name={configs[0]}")
    return max(folders, key=_version, default=None)


def read(path: Path) -> TfdsFolder:
    """Returns the set that the JSON files in `path` describe.

    Raises:
        UserError: where they are missing or damaged.
    """
    documents = []
    for file in path.iterdir() if path.is_dir() else ():  # TFDS reads others of them
        if not (file.is_file() or file.is_dir()):
            raise UserError(f"{file} is no regular file", "a set that TFDS has prepared whole, prepared again")
    for name in (INFO, FEATURES):
        try:
            documents.append(json.loads(regular_file(path / name).read_text()))
            if not isinstance(documents[-1], dict):
                raise ValueError("no mapping")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else f"is no JSON that TFDS has written ({error})"
            raise UserError(f"{path / name}: {why}", "a set that TFDS has prepared whole, prepared again") from error
    return TfdsFolder(path, documents[0], documents[1])


def check(settings: TfdsSettings) -> None:
    """Refuses a prepared set that cannot be trained on, without TensorFlow; does nothing where none is prepared.

    Raises:
        UserError: for several configurations, another file format, features that are not one image and one label,
            images of several sizes without `size`, and splits that the set does not have.
    """
    path = find(settings)
    if path is None:
        return
    folder = read(path)
    image, _ = image_and_label(folder, settings)
    height, width, channels = image[1].shape
    settings.shape((height, width, channels))
    for name, split in (("train", settings.train_split), ("val", settings.val_split), ("test", settings.test_split)):
        if split is not None:
            _check_split(folder, settings, name, split)


@dataclass(frozen=True)
class _Role:
    """The image or the label of a set. kind: of its feature; place: in the pair that the set declares."""

    name: str
    kind: str
    place: int


_IMAGE, _LABEL = _Role("image", "Image", 0), _Role("label", "ClassLabel", 1)


def image_and_label(folder: TfdsFolder, settings: TfdsSettings) -> tuple[tuple[str, Feature], tuple[str, Feature]]:
    """Returns the image and the label that are trained on, each with its name.

    They are those that `settings` names; else the pair that the set declares; else `image` and `label`; else the only
    Image and the only ClassLabel.

    Raises:
        UserError: where there are none, or several; it lists what the set has.
    """
    if folder.file_format != "tfrecord":
        raise UserError(
            f"data.name={settings.name} is prepared as {folder.file_format}",
            "tfrecord, TFDS' default; prepare it with file_format='tfrecord'",
        )
    features = dict(_flat(_feature(folder.features)))
    image = _chosen(folder, settings, features, _IMAGE, settings.image_key)
    label = _chosen(folder, settings, features, _LABEL, settings.label_key)
    if image[1].dtype != "uint8":
        raise _not_classification(settings, features, f"its image {image[0]} is of {image[1].dtype}")
    if label[1].classes < 2:
        raise _not_classification(settings, features, f"its label {label[0]} has {label[1].classes} class(es)")
    return image, label


def _chosen(
    folder: TfdsFolder, settings: TfdsSettings, features: Mapping[str, Feature], role: _Role, key: str | None
) -> tuple[str, Feature]:
    kind, usual = role.kind, role.name
    of_kind = {name: feature for name, feature in features.items() if feature.kind == kind}
    if key is not None:
        if key not in of_kind:
            reason = f"is {_in_words(features[key])}" if key in features else "is no feature of it"
            raise UserError(
                f"data.{usual}_key={key} {reason}: {settings.name} has {_listed(features)}",
                f"a feature that is {'an' if kind == 'Image' else 'a'} {kind}: {', '.join(of_kind) or 'it has none'}",
                f"data.{usual}_key={next(iter(of_kind))}" if of_kind else "",
            )
        return key, of_kind[key]
    declared = folder.supervised[role.place] if len(folder.supervised) == 2 else ""
    for name in (declared, usual, *(of_kind if len(of_kind) == 1 else ())):
        if name in of_kind:
            return name, of_kind[name]
    if of_kind:
        names = list(of_kind)
        raise UserError(
            f"data.name={settings.name} has {len(names)} features that are {kind}: {_listed(features)}",
            f"data.{usual}_key, one of {', '.join(names)}",
            f"data.{usual}_key={names[0]}",
        )
    raise _not_classification(settings, features, _why_not(features, kind))


def _why_not(features: Mapping[str, Feature], kind: str) -> str:
    """Returns why a set without one feature of `kind` cannot be trained on, such as that it is for detection."""
    kinds = [nested.kind for feature in features.values() for nested in _with_nested(feature)]
    for name, why in UNSUPPORTED.items():
        if name in kinds:
            return why
    if kind in kinds:
        plural = "several labels an image are" if kind == "ClassLabel" else "several images an example are"
        return f"{plural} not supported"
    return f"it has no {kind}"


def _not_classification(settings: TfdsSettings, features: Mapping[str, Feature], why: str) -> UserError:
    return UserError(
        f"data.name={settings.name} is no image classification: {why}; it has {_listed(features)}",
        ALLOWED,
        "data.name=<a set with an image and a label>",
    )


def _feature(node: Any) -> Feature:
    """Returns a feature of features.json, in today's form or in that of TFDS before 4.5 (`type` and `content`)."""
    if not isinstance(node, Mapping):
        return Feature("unknown", {})
    kind = str(node.get("pythonClassName") or node.get("type") or "unknown").rpartition(".")[2]
    contents = [value for key, value in node.items() if key not in ("pythonClassName", "type", "description", "doc")]
    content = next((value for value in contents if isinstance(value, Mapping)), {})
    return Feature(kind, content)


def _flat(feature: Feature, prefix: str = "") -> Iterator[tuple[str, Feature]]:
    """Yields the features of a dictionary, those of dictionaries inside it by names such as `a/b`, as TFRecords do."""
    for name, node in feature.inner.items():
        nested = _feature(node)
        if nested.kind == "FeaturesDict":
            yield from _flat(nested, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", nested


def _with_nested(feature: Feature) -> Iterator[Feature]:
    """Yields a feature and those nested in it."""
    yield feature
    if feature.kind in ("FeaturesDict", "Sequence", "Dataset", "Optional"):
        for node in feature.inner.values():
            yield from _with_nested(_feature(node))


def _listed(features: Mapping[str, Feature]) -> str:
    return ", ".join(f"{name} ({_in_words(feature)})" for name, feature in features.items()) or "no features"


def _in_words(feature: Feature) -> str:
    if feature.kind in ("Sequence", "Dataset"):
        return f"{feature.kind} of {', '.join(_in_words(_feature(inner)) for inner in feature.inner.values())}"
    if feature.kind == "FeaturesDict":
        return "{" + ", ".join(f"{name}: {_in_words(_feature(inner))}" for name, inner in feature.inner.items()) + "}"
    return feature.kind


def _check_split(folder: TfdsFolder, settings: TfdsSettings, name: str, split: str) -> None:
    counts = folder.splits
    for part in split.split("+"):
        match = _SPLIT.fullmatch(part)
        if match is None or (counts and match[1] not in (*counts, "all")):
            raise no_split(settings, name, split, list(counts))
        if match[1] in counts and not counts[match[1]]:
            raise UserError(f"data.{name}_split={split}: {settings.name} has no examples in it", "a split with some")


def no_split(settings: TfdsSettings, name: str, split: str, splits: list[str]) -> UserError:
    """Returns the error for `split`, chosen as `name`, which a set with these `splits` does not have."""
    suggestion = "train" if "train" in splits or not splits else splits[0]
    return UserError(
        f"data.{name}_split={split} is not in {settings.name}",
        splits,
        f"data.{name}_split={suggestion if name == 'train' else 'null'}",
    )


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdecimal())
