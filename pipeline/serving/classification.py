"""Classification of encoded images by a SavedModel that has been exported."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.system.environment import quiet_stderr
from stages.data.convert import decode_each
from stages.errors import UserError

BYTES = "serve_bytes"
"""The signature of a SavedModel that takes encoded images."""


def load(folder: Path) -> Any:
    """Returns the SavedModel in `folder`, loaded by TensorFlow, which is imported here."""
    with quiet_stderr():
        return import_module("tensorflow").saved_model.load(str(folder))


def encoded_function(loaded: Any) -> Any:
    """Returns the function of a loaded SavedModel that takes encoded images, string [N].

    Raises:
        UserError: where it has none.
    """
    if BYTES not in loaded.signatures:
        raise UserError(
            f"the model has no {BYTES}: its images have neither 1 nor 3 channels, or an earlier version exported it",
            "a model of gray or color images, exported by this version",
            "python -m pipeline from=export run=<run>",
        )
    return loaded.signatures[BYTES]


def scores(classify: Any, encoded: list[bytes]) -> list[dict[str, Any] | str]:
    """Returns `class_name`, `score` and `probabilities` of each encoded image, or why it cannot be decoded.

    Args:
        classify: the signature `serve_bytes` of a SavedModel.
    """
    tensorflow = import_module("tensorflow")

    def classified(contents: list[bytes]) -> list[dict[str, Any]]:
        answer = classify(tensorflow.constant(contents, tensorflow.string))
        names, best, rows = (answer[name].numpy() for name in ("class_name", "score", "probabilities"))
        return [
            {"class_name": name.decode(), "score": float(score), "probabilities": [float(value) for value in row]}
            for name, score, row in zip(names, best, rows, strict=True)
        ]

    answers = decode_each(encoded, classified, tensorflow.errors.OpError)
    return [answer if isinstance(answer, dict) else f"the image cannot be decoded: {answer}" for answer in answers]
