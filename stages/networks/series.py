"""Networks for windows of time series: dense layers by step, dilated convolutions, a GRU, and residual blocks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from stages.errors import UserError
from stages.features.kinds import HISTORY
from stages.features.windows import DAYS, PLACES_OF_DAYS, TIME, WAVES
from stages.networks.joined import SeriesFacts, Shapes, embedding_width, mean_of_words, member_outputs
from stages.networks.precision import last_dtype

LEAST_SCALE = 0.01
"""Smallest scale of a window, in standard deviations of the training rows, so that constant windows stay finite."""

LARGEST = 8.0
"""Bound of the absolute value of other columns, which far larger values approach."""

SEASONS = 5
"""Maximum number of past seasons from which a step gets the values at its own place."""

DAY_WIDTH = {"year": 16, "month": 8}
"""Size of the embedding of a day, by its place in the year, and as a weekday of a month."""

MEMBERS = 4
"""Number of members of the head of `causal_cnn` and `gru`."""

BLEND = "blend_with_naive"
"""Name of the layer whose two weights are the shares of the network and of the seasonal naive forecast."""


@dataclass(frozen=True)
class Steps:
    """The inputs of a network by steps, with the past of the targets relative to the level of each window."""

    inputs: Mapping[str, Any]
    """The inputs of the network by name."""
    targets: Any
    """The past of the targets, scaled, [b, window, targets]; None if there is one answer to the whole window."""
    others: Any
    """The past of other columns, [b, window, c]; None if there are none."""
    known: Any
    """The past of columns that are known in advance, [b, window, k]; None if there are none."""
    times: Any
    """The calendar of past steps, [b, window, t]; None if there is none."""
    future: Any
    """Everything that is known in advance of the next steps, [b, horizon, f]; None if nothing is."""
    days: Any
    """Embeddings of the days of the next steps, [b, horizon, d]; None if training was too short for them."""
    static: Any
    """Everything that is known of the series, [b, s]; None if nothing is."""
    level: Any
    """The mean of each target in the window, [b, 1, targets, 1]; None without targets."""
    scale: Any
    """The standard deviation of each target in the window, of the same shape."""
    facts: SeriesFacts

    @classmethod
    def of(cls, input_shape: tuple[int, ...] | Shapes, facts: SeriesFacts) -> "Steps":
        """Return the inputs of a network.

        Args:
            input_shape: The shape of the past, or of all inputs by name.
            facts: Facts about the windows.
        """
        shapes = input_shape if isinstance(input_shape, Mapping) else {HISTORY: input_shape}
        categories, window = facts.categories, facts.window
        inputs = {
            name: keras.Input(shape, dtype="int32" if name in categories else "float32", name=name)
            for name, shape in shapes.items()
        }
        history = inputs[HISTORY]
        targets, level, scale = None, None, None
        if facts.targets:
            targets = history[:, :, : facts.targets]
            level = ops.mean(targets, axis=1, keepdims=True)
            scale = ops.sqrt(ops.mean(ops.square(targets - level), axis=1, keepdims=True) + LEAST_SCALE**2)
            targets = (targets - level) / scale
        others = history[:, :, facts.targets :] if history.shape[-1] > facts.targets else None
        static, known = [], []
        for name, value in inputs.items():
            if name in categories:
                count = categories[name]
                if shapes[name]:
                    static.append(mean_of_words(value, count, name))
                else:
                    layer = keras.layers.Embedding(count, embedding_width(count), name=f"embed_{name}")
                    static.append(layer(value))
            elif len(shapes[name]) == 1:
                static.append(value)
            elif name not in (HISTORY, TIME):
                known.append(value)
        times, days = inputs.get(TIME), None
        if times is not None and facts.has_days:
            days = _days(times[:, window:, PLACES_OF_DAYS]) if facts.targets else None
            times = times[:, :, WAVES]
        steps = [*known, *([] if times is None else [times])]
        return cls(
            inputs=inputs,
            targets=targets,
            others=others,
            known=_joined([part[:, :window] for part in known]),
            times=None if times is None else times[:, :window],
            future=_joined([part[:, window:] for part in steps if part.shape[1] > window]),
            days=days,
            static=_joined(static),
            level=None if level is None else ops.expand_dims(level, -1),
            scale=None if scale is None else ops.expand_dims(scale, -1),
            facts=facts,
        )

    @property
    def past(self) -> Any:
        """Everything that is known of the past steps, [b, window, p], the targets first."""
        return _joined([part for part in (self.targets, self.others, self.known, self.times) if part is not None])

    @property
    def bounded(self) -> Any:
        """The past of other columns, [b, window, c], in which far values approach LARGEST."""
        return self.others / ops.sqrt(1.0 + ops.square(self.others / LARGEST))

    @property
    def summary(self) -> Any:
        """The past as a vector, [b, c]: the targets, and for other columns the last value and the mean of a season.

        All past values of many columns would mostly be noise. Without targets, they are the only inputs, and the means
        are those of the last 1, 2, 4, … steps, and of the window.
        """
        parts = [keras.layers.Flatten()(part) for part in (self.targets, self.known) if part is not None]
        if self.others is not None:
            window = self.facts.window
            doubling = [2**power for power in range(window.bit_length()) if 2**power < window]
            counts = [1, self.facts.season] if self.facts.targets else [*doubling, window]
            parts += [ops.mean(self.bounded[:, -count:], axis=1) for count in counts]
        return _joined(parts)

    def past_season(self, count: int) -> Any:
        """Return the past targets, `count` seasons ago, at the place of each next step, [b, horizon, targets]."""
        places = self._places(count)
        return ops.take(self.targets, places.astype(np.int32), axis=1)

    @property
    def seasonal(self) -> Any:
        """The past targets at the place of each next step in its season, the latest season first, [b, horizon, c]."""
        counts = [count for count in range(1, SEASONS + 1) if (self._places(count) >= 0).all()]
        return _joined([self.past_season(count) for count in counts])

    def _places(self, count: int) -> np.ndarray:
        season = self.facts.season
        return self.facts.window - season * count + np.arange(self.facts.horizon) % season

    def answers(self, context: Any, outputs: int, hidden: Sequence[int], dropout: float, members: int) -> Any:
        """Return outputs of members, [b, members, outputs], from what a network makes of the window.

        Without targets, there is one answer to the whole window, [b, outputs].

        The same dense layers answer each next step, from the window and from what is known of the step: the values at
        its place in past seasons, its calendar, and columns that are known in advance. The first layer is a sum of both
        parts, so that of the window is computed once. Members are those of `tabular`: each multiplies the inputs by
        factors of its own, shares the dense layers, and has a linear output of its own.

        Args:
            context: What a network makes of the window, [b, c].
            outputs: The number of outputs per member, the same for each step.
            hidden: The units of the dense layers.
            dropout: The fraction of units that are dropped behind each of them.
            members: The number of members.
        """
        horizon, width = self.facts.horizon, hidden[0]
        window = _joined([context] + ([] if self.static is None else [self.static]))
        if self.targets is None:
            window = _joined([window] + ([] if self.future is None else [keras.layers.Flatten()(self.future)]))
            value = keras.layers.Dense(hidden[-1], activation="relu")(window)
            value = keras.layers.Dropout(dropout)(value) if dropout else value
            return keras.layers.Dense(outputs, dtype=last_dtype())(value)
        number = ops.zeros_like(self.seasonal[:, :, :1]) + np.eye(horizon, dtype=np.float32)  # of the step, one-hot
        step = _joined([part for part in (number, self.seasonal, self.future, self.days) if part is not None])
        of_window = self._first(window, width, members, "window")
        of_step = self._first(ops.reshape(step, (-1, step.shape[-1])), width, members, "step")
        by_step = ops.reshape(of_step, (-1, horizon, members * width))
        value = ops.relu(by_step + ops.reshape(of_window, (-1, 1, members * width)))
        value = ops.reshape(value, (-1, width))  # a row for each example, step and member
        for units in hidden[1:]:
            value = keras.layers.Dropout(dropout)(value) if dropout else value
            value = keras.layers.Dense(units, activation="relu")(value)
        value = keras.layers.Dropout(dropout)(value) if dropout else value
        value = ops.reshape(value, (-1, members, hidden[-1]))
        # A layer for each member: LiteRT's converter fails on a product of all at once.
        heads = [
            keras.layers.Dense(outputs // horizon, dtype=last_dtype(), name=f"head_{member}")(value[:, member])
            for member in range(members)
        ]
        return self.in_units(ops.stack([ops.reshape(head, (-1, outputs)) for head in heads], axis=1))

    def answer(self, outputs: int, hidden: Sequence[int], dropout: float, members: int) -> Any:
        """Return one answer of each member to the whole window, [b, members, outputs].

        The outputs are linear in the last step, too, and so in the last known class: that alone predicts most classes
        that rarely change. Members are those of `tabular`.

        Args:
            outputs: The number of outputs per member.
            hidden: The units of the dense layers.
            dropout: The fraction of units that are dropped behind each of them.
            members: The number of members.
        """
        future = [] if self.future is None else [keras.layers.Flatten()(self.future)]
        window = _joined([self.summary, *([] if self.static is None else [self.static]), *future])
        value = ops.relu(self._first(window, hidden[0], members, "window"))
        for units in hidden[1:]:
            value = keras.layers.Dropout(dropout)(value) if dropout else value
            value = keras.layers.Dense(units, activation="relu")(value)
        value = keras.layers.Dropout(dropout)(value) if dropout else value
        last = ops.repeat(self.bounded[:, -1:], members, axis=1)
        return member_outputs(_joined([ops.reshape(value, (-1, members, hidden[-1])), last]), outputs)

    @staticmethod
    def _first(values: Any, width: int, members: int, name: str) -> Any:
        """Return the first layer's part for some inputs, [n * members, width], from [n, d]."""
        factors = keras.layers.EinsumDense(
            "bd,kd->bkd",
            (members, values.shape[-1]),
            kernel_initializer=keras.initializers.RandomNormal(0, 1),
            name=f"factors_of_{name}",
        )
        rows = ops.reshape(factors(values), (-1, values.shape[-1]))
        return keras.layers.Dense(width, name=f"of_{name}")(rows)

    def in_units(self, scaled: Any) -> Any:
        """Return outputs that are relative to the window, [b, …, outputs], as the targets are.

        If there is one for each target, BLEND adds a share of the seasonal naive forecast, which is 0 until training
        ends; see `blended`.
        """
        answered = self.facts.horizon * self.facts.targets
        of_target = scaled.shape[-1] // answered
        steps = math.prod(scaled.shape[1:]) // (self.facts.targets * of_target)
        by_target = ops.reshape(scaled, (-1, steps, self.facts.targets, of_target))
        if of_target == 1:
            naive = ops.tile(self.past_season(1), (1, steps // self.facts.horizon, 1))
            both = ops.concatenate([by_target, ops.cast(ops.expand_dims(naive, -1), by_target.dtype)], axis=-1)
            layer = keras.layers.Dense(
                1, use_bias=False, kernel_initializer="identity", trainable=False, dtype=last_dtype(), name=BLEND
            )
            by_target = layer(both)
        return ops.reshape(by_target * self.scale + self.level, (-1, *scaled.shape[1:]))

    def model(self, outputs: Any, name: str) -> keras.Model:
        """Return the network."""
        given = self.inputs if len(self.inputs) > 1 else next(iter(self.inputs.values()))
        return keras.Model(given, outputs, name=name)


def _joined(parts: list[Any]) -> Any:
    return None if not parts else parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)


def _days(places: Any) -> Any:
    """Return embeddings of days, [b, steps, d], from their places from 0 to 1, [b, steps, DAYS]."""
    parts = []
    for place, (name, count) in enumerate(DAYS.items()):
        numbers = ops.cast(places[:, :, place] * count + 0.5, "int32")
        parts.append(keras.layers.Embedding(count, DAY_WIDTH[name], name=f"embed_day_of_{name}")(numbers))
    return _joined(parts)


def by_step(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    hidden: list[int],
    dropout: float,
    members: int,
    series: SeriesFacts,
) -> keras.Model:
    """Return a network whose dense layers answer each next step, with the same weights for all steps.

    For one class or number of the whole window, they answer once.

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        hidden: The units of the dense layers.
        dropout: The fraction of units that are dropped behind each layer.
        members: The number of members.
        series: Facts about the windows.
    """
    steps = Steps.of(input_shape, series)
    if series.targets:
        return steps.model(steps.answers(steps.summary, outputs, hidden, dropout, members), "by_step")
    return steps.model(steps.answer(outputs, hidden, dropout, members), "by_step")


def causal_cnn(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    filters: int,
    kernel_size: int,
    dropout: float,
    series: SeriesFacts,
) -> keras.Model:
    """Return a network of causal convolutions, whose dilation doubles until they see the whole window.

    Source: Bai, Kolter and Koltun 2018 (arXiv:1803.01271).

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        filters: The filters of each convolution.
        kernel_size: The steps of each convolution.
        dropout: The fraction of units that are dropped before the last layers.
        series: Facts about the windows.
    """
    steps = Steps.of(input_shape, series)
    value, seen, dilation = keras.layers.Conv1D(filters, 1)(steps.past), 1, 1
    while seen < series.window:
        layer = keras.layers.Conv1D(filters, kernel_size, padding="causal", dilation_rate=dilation, activation="relu")
        value = keras.layers.Add()([value, layer(value)])
        seen, dilation = seen + (kernel_size - 1) * dilation, 2 * dilation
    context = [value[:, -1]] if series.targets else [value[:, -1], ops.mean(value, axis=1), ops.max(value, axis=1)]
    return steps.model(steps.answers(_joined(context), outputs, [filters, filters], dropout, MEMBERS), "causal_cnn")


def gru(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    units: int,
    dropout: float,
    series: SeriesFacts,
) -> keras.Model:
    """Return a network whose GRU reads the window step by step (Cho et al. 2014, arXiv:1406.1078).

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        units: The units of the GRU.
        dropout: The fraction of units that are dropped before the last layers.
        series: Facts about the windows.
    """
    steps = Steps.of(input_shape, series)
    value = keras.layers.GRU(units)(steps.past)
    return steps.model(steps.answers(value, outputs, [units, units], dropout, MEMBERS), "gru")


def nbeats(
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    hidden: list[int],
    blocks: int,
    dropout: float,
    series: SeriesFacts,
) -> keras.Model:
    """Return a network of residual blocks, each of which explains a part of the past and of the next values.

    Sources: Oreshkin et al. 2020 (arXiv:1905.10437); with other columns, Olivares et al. 2021 (arXiv:2104.05522).

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        hidden: The units of the dense layers of a block.
        blocks: The number of blocks.
        dropout: The fraction of units that are dropped behind each layer.
        series: Facts about the windows.
    """
    if not series.targets:
        problem = "model=nbeats predicts next values, but the data has one class or number for each series"
        raise UserError(problem, "a network for windows with one target", "model=auto")
    steps = Steps.of(input_shape, series)
    rest = keras.layers.Flatten()(steps.targets)
    others = [keras.layers.Flatten()(part) for part in (steps.past[:, :, series.targets :], steps.future)
              if part is not None and part.shape[-1]] + ([] if steps.static is None else [steps.static])  # fmt: skip
    forecasts = []
    for _ in range(blocks):
        value = _joined([rest, *others])
        for count in hidden:
            value = keras.layers.Dense(count, activation="relu")(value)
            value = keras.layers.Dropout(dropout)(value) if dropout else value
        rest = keras.layers.Subtract()([rest, keras.layers.Dense(rest.shape[-1])(value)])
        forecasts.append(keras.layers.Dense(outputs, dtype=last_dtype())(value))
    total = forecasts[0] if len(forecasts) == 1 else keras.layers.Add(dtype=last_dtype())(forecasts)
    return steps.model(steps.in_units(total), "nbeats")
