"""Training on a table and on texts, against bare compute and a script by hand: seconds of an epoch, in turns."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from benchmarks.measuring import Samples, UnavailableError, interleave, timed
from benchmarks.models import built, device, trained_by_adam, training_loop
from benchmarks.processes import DATA
from stages.data.batches import first_batch
from stages.load.arrays import dataset_of_result
from stages.load.table import table
from stages.networks.mlp import mlp
from stages.networks.texts import text_cnn
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings, TextCnnSettings
from stages.settings.table import TableSettings

LENGTH, WORDS = 128, 20_000
PACKAGES = ("numpy", "numpy.ma", "scipy.stats", "scipy.signal", "keras.layers", "sklearn.metrics", "sklearn.ensemble")

Encode = Callable[[Any, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def tables(rounds: int) -> Samples:
    """Measure diamonds (numbers and categories, their price) with `mlp`, in batches of 256."""
    path = DATA / "tables" / "diamonds.csv"
    if not path.exists():
        raise UnavailableError("no diamonds.csv in ../shared/data/tables")
    dataset = normalize(table(TableSettings(files=str(path), target="price", split_seed=1)), NormalizeSettings())
    columns = {name: part.to_numpy() for name, part in pd.read_csv(path).iloc[dataset.train.numbers].items()}
    price = columns.pop("price").astype(np.float32)
    layers: dict[Any, Any] = {}
    for name, values in columns.items():
        kind = keras.layers.Normalization if values.dtype.kind in "fi" else keras.layers.StringLookup
        layers[name] = kind(axis=None) if values.dtype.kind in "fi" else kind(output_mode="one_hot")
        layers[name].adapt(values)

    def encode(row: dict[str, tf.Tensor], target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.concat([tf.cast(layers[name](row[name][:, None]), tf.float32) for name in row], axis=1), target

    given = tf.data.Dataset.from_tensor_slices((columns, (price - price.mean()) / price.std()))
    width = given.batch(2).map(encode).element_spec[0].shape[1]
    script = mlp((width,), 1, [256, 256], 0.0)
    script.compile("adam", keras.losses.MeanSquaredError(), metrics=["mae"])
    return _measured(dataset, MlpSettings(), 256, script, given, encode, rounds)


def texts(rounds: int) -> Samples:
    """Measure docstrings, whose class is their package, with `text_cnn`, in batches of 64."""
    members = [(name, inspect.getdoc(one)) for name in PACKAGES for one in vars(importlib.import_module(name)).values()]
    found = sorted({(text, name.partition(".")[0]) for name, text in members if text and len(text) > 100})
    words, classes = (np.array(part, object) for part in zip(*found, strict=True))
    dataset = normalize(dataset_of_result(({"text": words}, classes)), NormalizeSettings(length=LENGTH))
    rows, outputs = dataset.train.numbers, dataset.task.head.units
    layer = keras.layers.TextVectorization(WORDS, output_sequence_length=LENGTH)
    layer.adapt(words[rows])
    given = tf.data.Dataset.from_tensor_slices((words[rows].astype(str), dataset.train.targets))
    script = text_cnn({"text": (LENGTH,)}, outputs, 128, [3, 4, 5], 0.5, {"text": WORDS})
    script.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return _measured(dataset, TextCnnSettings(), 64, script, given, lambda text, label: (layer(text), label), rounds)


def _measured(  # noqa: PLR0913  # each is another fact of one comparison
    dataset: Dataset, network: Any, batch: int, script: keras.Model, given: tf.data.Dataset, encode: Encode, rounds: int
) -> Samples:
    """Return the seconds of an epoch of the project's loop, of as many bare steps, and of the script's `fit`."""
    where, steps = device(), -(-len(dataset.train) // batch)
    loop = training_loop(dataset, where, built(dataset, where, network), trained_by_adam(batch, steps))
    bare, optimizer, first = (
        built(dataset, where, network).network,
        keras.optimizers.Adam(),
        first_batch(dataset, batch, 1),
    )
    optimizer.build(bare.trainable_variables)
    inputs = first.inputs if len(first.inputs) > 1 else next(iter(first.inputs.values()))

    @tf.function(autograph=False)
    def bare_steps() -> None:
        def step(number: tf.Tensor) -> tuple[tf.Tensor]:
            with tf.GradientTape() as tape:
                value = script.loss(first.targets, bare(inputs, training=True))
            variables = bare.trainable_variables
            optimizer.apply(tape.gradient(value, [variable.value for variable in variables]), variables)
            return (number + 1,)

        tf.while_loop(lambda number: number < steps, step, (0,))

    batches = given.shuffle(10_000).batch(batch).map(encode, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    cached = given.batch(1024).map(encode).unbatch().cache().shuffle(10_000).batch(batch).prefetch(tf.data.AUTOTUNE)
    epochs = iter(range(1_000_000))
    ways = {
        "pipeline": lambda: loop.run(next(epochs) * steps, steps),
        "bare compute": bare_steps,
        "Keras script": lambda: script.fit(batches, verbose=0),
        "Keras script, cached": lambda: script.fit(cached, verbose=0),
    }
    return interleave({name: timed(work) for name, work in ways.items()}, rounds, warm_up=2)
