"""The tutorials' script for MNIST: tensorflow.org/datasets/keras_example with the network of keras.io's mnist_convnet.

    python -m benchmarks.baselines.keras_mnist FOLDER TIMES [cached]

FOLDER: of TFDS. TIMES: where the seconds of the epochs are written. cached: with `cache()` and `prefetch`.
"""

import sys

import keras
import tensorflow as tf
import tensorflow_datasets as tfds

from benchmarks.baselines.networks import convnet
from benchmarks.callbacks import EpochTimes

folder, times, *options = sys.argv[1:]
train, val = tfds.load(
    "mnist",
    split=["train[:90%]", "train[90%:]"],
    data_dir=folder,
    download=False,
    as_supervised=True,
    shuffle_files=True,
)


def normalize(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(image, tf.float32) / 255.0, label


if options == ["cached"]:
    train = train.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).cache()
    train = train.shuffle(54_000).batch(128).prefetch(tf.data.AUTOTUNE)
    val = val.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).batch(128).cache().prefetch(tf.data.AUTOTUNE)
else:
    train = train.map(normalize).shuffle(1024).batch(128)
    val = val.map(normalize).batch(128)

model = convnet()
model.compile(
    optimizer=keras.optimizers.Adam(0.001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
model.fit(train, epochs=3, validation_data=val, callbacks=[EpochTimes(times)])
