"""Prepared sets of TFDS that tests make: records, dataset_info.json and features.json, without a download."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

CORE = "tensorflow_datasets.core.features"


def image(*shape: int, dtype: str = "uint8") -> dict[str, Any]:
    """Returns an Image feature as features.json has it; of any size without a shape."""
    dimensions = [str(side) for side in shape or (-1, -1, 3)]
    return {
        "pythonClassName": f"{CORE}.image_feature.Image",
        "image": {"dtype": dtype, "shape": {"dimensions": dimensions}},
    }


def label(classes: int = 2) -> dict[str, Any]:
    return {
        "pythonClassName": f"{CORE}.class_label_feature.ClassLabel",
        "classLabel": {"numClasses": str(classes)},
    }


def text() -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.text_feature.Text", "text": {}}


def boxes() -> dict[str, Any]:
    return {
        "pythonClassName": f"{CORE}.bounding_boxes.BBoxFeature",
        "boundingBox": {"shape": {"dimensions": ["4"]}, "dtype": "float32"},
    }


def sequence(feature: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.sequence_feature.Sequence", "sequence": {"feature": feature, "length": "-1"}}


def features_dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


def make_set(
    folder: Path,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    features: Mapping[str, Any],
    name: str = "made",
    file_format: str = "tfrecord",
    supervised: tuple[str, str] | None = None,
) -> Path:
    """Writes `<folder>/<name>/1.0.0` and returns it.

    Args:
        splits: from each split to its examples: from a feature's name to bytes or a whole number.
        features: as features.json has them.
        supervised: the names of the set's own (input, label) pair.
    """
    place = folder / name / "1.0.0"
    place.mkdir(parents=True)
    (place / "features.json").write_text(json.dumps(features_dict(features)))
    facts: dict[str, Any] = {"name": name, "version": "1.0.0", "fileFormat": file_format, "splits": []}
    if supervised is not None:
        facts["supervisedKeys"] = {"tuple": {"items": [{"featureKey": key} for key in supervised]}}
    for split, examples in splits.items():
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        lengths = [str(len(examples))] if examples else []
        facts["splits"].append({"name": split, "shardLengths": lengths, "filepathTemplate": template})
        with tf.io.TFRecordWriter(str(place / f"{name}-{split}.{file_format}-00000-of-00001")) as writer:
            for example in examples:
                writer.write(_record(example).SerializeToString())
    (place / "dataset_info.json").write_text(json.dumps(facts))
    return place


def _record(example: Mapping[str, Any]) -> tf.train.Example:
    made = tf.train.Example()
    for key, value in example.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bytes):
                made.features.feature[key].bytes_list.value.append(one)
            else:
                made.features.feature[key].int64_list.value.append(one)
    return made
