"""An exported model that is created without training."""

from pathlib import Path

import tensorflow as tf

NAMES = ("black :cat:", "tab\tbed", "long " * 30)
IMAGE = b"\xff\xd8" + bytes(30)
"""Bytes that the export accepts as an image, because they begin like a JPEG."""


def write_export(folder: Path) -> None:
    """Write a SavedModel that predicts the same probabilities of `NAMES` for each image."""

    def classify(encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        good = tf.reduce_all(tf.strings.substr(encoded, 0, 2) == b"\xff\xd8")
        with tf.control_dependencies([tf.debugging.Assert(good, ["no image"])]):
            rows = tf.tile([[0.2, 0.7, 0.1]], [tf.size(encoded), 1])
        names = tf.gather(NAMES, tf.argmax(rows, axis=-1))
        return {"probabilities": rows, "class_name": names, "score": tf.reduce_max(rows, axis=-1)}

    module = tf.Module()
    with tf.device("/cpu:0"):
        module.class_names = tf.Variable(NAMES, trainable=False)
    spec = tf.TensorSpec((None,), tf.string, name="encoded")
    function = tf.function(classify, autograph=False).get_concrete_function(spec)
    tf.saved_model.save(module, str(folder / "export" / "saved_model"), {"serve_bytes": function})
