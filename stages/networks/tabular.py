"""A network for tables: binned numbers, and members that share most of their weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from stages.features.encoder import NUMBERS
from stages.networks.joined import Shapes, TableFacts, mean_of_words, member_outputs

LARGEST = 8.0
"""Bound of the absolute value of standardized numbers, which far larger ones approach."""

BIN_WIDTH, MOST_BINNED = 8, 512
"""Maximum number of values that stand for a binned number, and for all of them together."""

DROPOUT, FEW_EXAMPLES = 0.1, 8_000
"""The fraction of units that are dropped if there are fewer training examples than this."""

EMBEDDING_WIDTH = 16
"""Maximum width of the embedding of a category."""


def tabular(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    hidden: list[int],
    dropout: float | None,
    members: int,
    table: TableFacts,
) -> keras.Model:
    """Return a network from float [b, d], or inputs by name, to float32 [b, members, outputs], or wider.

    Numbers enter twice: bounded, and as a piecewise-linear code of the bins between their quantiles, which a linear map
    of each number makes narrow (Gorishniy et al. 2022, arXiv:2203.05556). Each member multiplies all inputs by factors
    of its own, shares the dense layers with the others, and has a linear output of its own (TabM-mini: Gorishniy et al.
    2024, arXiv:2410.24210). It is an ensemble for the price of a wider batch: the answer is the mean of the members'.

    It consists of Keras' own layers, so that a `.keras` file of it loads without this project.

    Args:
        input_shape: The shape of an example, or of its inputs by name.
        outputs: The number of outputs per member.
        hidden: The units of the dense layers.
        dropout: The fraction of units that are dropped behind each of them. None: by the number of examples.
        members: The number of members.
        table: Facts about the training rows.
    """
    dropped = dropout if dropout is not None else DROPOUT * (table.examples < FEW_EXAMPLES)
    categories, edges = table.categories, table.edges
    shapes = input_shape if isinstance(input_shape, Mapping) else {NUMBERS: input_shape}
    inputs = {
        name: keras.Input(shape, dtype="int32" if name in categories else "float32", name=name)
        for name, shape in shapes.items()
    }
    parts: list[Any] = []
    widths: list[int] = []
    for name, value in inputs.items():
        if name not in categories:
            flat = keras.layers.Flatten()(value)
            parts.append(flat / ops.sqrt(1.0 + ops.square(flat / LARGEST)))
            widths += [1] * flat.shape[-1]
            if name == NUMBERS and (binned := [place for place, one in enumerate(edges) if len(one)]):
                parts.append(_bins(flat, binned, [edges[place] for place in binned]))
                widths += [parts[-1].shape[-1] // len(binned)] * len(binned)
        else:
            count = categories[name]
            width = min(EMBEDDING_WIDTH, round(1.6 * count**0.56))
            embedding = keras.layers.Embedding(count, width, name=f"embed_{name}")
            parts.append(mean_of_words(value, count, name) if shapes[name] else embedding(value))
            widths.append(parts[-1].shape[-1])
    joined = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    value = _rows(_factors(joined, members, widths))
    for units in hidden:
        value = keras.layers.Dense(units, activation="relu")(value)
        value = keras.layers.Dropout(dropped)(value) if dropped else value
    grouped = ops.reshape(value, (-1, members, hidden[-1] if hidden else joined.shape[-1]))
    limit = grouped.shape[-1] ** -0.5
    answers = member_outputs(grouped, outputs, keras.initializers.RandomUniform(-limit, limit))
    given = inputs if len(inputs) > 1 or isinstance(input_shape, Mapping) else next(iter(inputs.values()))
    return keras.Model(given, answers, name="tabular")


def _bins(numbers: Any, binned: Sequence[int], edges: Sequence[Sequence[float]]) -> Any:
    """Return the codes of binned numbers, [b, count * width], from all numbers, [b, d].

    Args:
        numbers: Standardized.
        binned: The columns with bins.
        edges: Their edges.
    """
    most = max(map(len, edges)) - 1
    left, scale = np.zeros((2, len(edges), most), np.float32)  # a bin that is not there has the scale 0
    for place, one in enumerate(edges):
        left[place, : len(one) - 1] = one[:-1]
        scale[place, : len(one) - 1] = 1 / np.maximum(np.diff(one), 1e-6)
    chosen = ops.take(numbers, np.array(binned, np.int32), axis=1)
    filled = ops.clip((ops.expand_dims(chosen, -1) - left) * scale, 0.0, 1.0)
    width = max(2, min(BIN_WIDTH, MOST_BINNED // len(binned)))
    limit = most**-0.5
    mapped = keras.layers.EinsumDense(
        "bfm,fmw->bfw",
        (len(binned), width),
        bias_axes="fw",
        kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
        name="bins",
    )(filled)
    return keras.layers.Flatten()(mapped)


def _factors(joined: Any, members: int, widths: Sequence[int]) -> Any:
    """Return the inputs times the factors of each member, [b, members, d].

    Args:
        joined: All inputs, [b, d].
        members: The number of members.
        widths: Of the features that the inputs consist of. All values of a feature begin with the same factor.
    """
    layer = keras.layers.EinsumDense(
        "bd,kd->bkd",
        (members, joined.shape[-1]),
        kernel_initializer=keras.initializers.RandomNormal(0, 1),
        name="factors",
    )
    outputs = layer(joined)
    first = np.repeat(np.cumsum([0, *widths[:-1]]), widths)
    layer.kernel.assign(ops.take(layer.kernel, first, axis=1))
    return outputs


def _rows(values: Any) -> Any:
    """Return [b, members, d] as rows, [b * members, d], so that a dense layer is one product of matrices."""
    return ops.reshape(values, (-1, values.shape[-1]))
