"""The tutorials' script for tf_flowers (tensorflow.org/tutorials/load_data/images), with the project's `cnn_photo`.

python -m benchmarks.baselines.keras_flowers FOLDER TIMES EPOCHS
"""

import sys

import keras
import tensorflow as tf
import tensorflow_datasets as tfds

from benchmarks.baselines.networks import photo_convnet
from benchmarks.callbacks import EpochTimes

SIZE = 96
folder, times, epochs = sys.argv[1:]
train, val = tfds.load(
    "tf_flowers", split=["train[:81%]", "train[81%:90%]"], data_dir=folder, download=False, as_supervised=True
)


def resize(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.image.resize(image, [SIZE, SIZE]), label


model = photo_convnet(SIZE, 5)
model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(
    train.map(resize).shuffle(1000).batch(32),
    epochs=int(epochs),
    validation_data=val.map(resize).batch(32),
    callbacks=[EpochTimes(times)],
)
