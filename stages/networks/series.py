"""Networks for windows of time series: dilated convolutions, a GRU, and residual blocks of dense layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from stages.errors import UserError
from stages.features.kinds import HISTORY
from stages.networks.joined import SeriesFacts, Shapes, embedding_width, mean_of_words
from stages.networks.precision import last_dtype

LEAST_SCALE = 0.01
"""Smallest scale of a window, in standard deviations of the training rows, so that constant windows stay finite."""


@dataclass(frozen=True)
class Steps:
    """The inputs of a network by steps, with the past of the targets relative to the level of each window."""

    inputs: Mapping[str, Any]
    """The inputs of the network by name."""
    targets: Any
    """The past of the targets, scaled, [b, window, targets]."""
    past: Any
    """Everything that is known of the past steps, [b, window, p], the targets first."""
    future: Any
    """Everything that is known in advance of the next steps, [b, horizon, f]; None if nothing is."""
    static: Any
    """Everything that is known of the series, [b, s]; None if nothing is."""
    level: Any
    """The mean of each target in the window, [b, 1, targets, 1]; None if windows are not scaled."""
    scale: Any
    """The standard deviation of each target in the window, of the same shape."""
    facts: SeriesFacts

    @classmethod
    def of(
        cls, input_shape: tuple[int, ...] | Shapes, categories: Mapping[str, int], facts: SeriesFacts, is_scaled: bool
    ) -> "Steps":
        """Return the inputs of a network.

        Args:
            input_shape: The shape of the past, or of all inputs by name.
            categories: From inputs of indices to the number of different ones.
            facts: Facts about the windows.
            is_scaled: Whether each window is scaled by its own mean and standard deviation.
        """
        shapes = input_shape if isinstance(input_shape, Mapping) else {HISTORY: input_shape}
        inputs = {
            name: keras.Input(shape, dtype="int32" if name in categories else "float32", name=name)
            for name, shape in shapes.items()
        }
        history = inputs[HISTORY]
        targets, level, scale = history[:, :, : facts.targets], None, None
        if is_scaled and facts.targets:
            level = ops.mean(targets, axis=1, keepdims=True)
            spread = ops.mean(ops.square(targets - level), axis=1, keepdims=True)
            scale = ops.sqrt(spread + LEAST_SCALE**2)
            targets = (targets - level) / scale
        past, future, static = [targets] if facts.targets else [], [], []
        if history.shape[-1] > facts.targets:
            past.append(history[:, :, facts.targets :])
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
            elif name != HISTORY:
                past.append(value[:, : facts.window])
                if value.shape[1] > facts.window:
                    future.append(value[:, facts.window :])
        level, scale = (None if one is None else ops.expand_dims(one, -1) for one in (level, scale))
        return cls(inputs, targets, _joined(past), _joined(future), _joined(static), level, scale, facts)

    def answers(self, context: Any, outputs: int, width: int, dropout: float) -> Any:
        """Return outputs, [b, outputs], from what is known of a whole window, [b, c], and of each next step.

        Args:
            context: What a network makes of the window.
            outputs: The number of outputs, the same for each step.
            width: The units of the dense layer that all steps share.
            dropout: The fraction of its inputs that are dropped.
        """
        horizon = self.facts.horizon
        context = _joined([context] + ([] if self.static is None else [self.static]))
        if not self.facts.targets:
            context = _joined([context] + ([] if self.future is None else [keras.layers.Flatten()(self.future)]))
            hidden = keras.layers.Dense(width, activation="relu")(context)
            hidden = keras.layers.Dropout(dropout)(hidden) if dropout else hidden
            return keras.layers.Dense(outputs, dtype=last_dtype())(hidden)
        by_step = ops.reshape(keras.layers.Dense(horizon * width, activation="relu")(context), (-1, horizon, width))
        by_step = _joined([by_step] + ([] if self.future is None else [self.future]))
        by_step = keras.layers.Dropout(dropout)(by_step) if dropout else by_step
        hidden = keras.layers.Dense(width, activation="relu")(by_step)
        last = keras.layers.Dense(outputs // horizon, dtype=last_dtype())(hidden)
        linear = keras.layers.Dense(outputs, dtype=last_dtype(), name="linear")(keras.layers.Flatten()(self.targets))
        return self.in_units(ops.reshape(last, (-1, outputs)) + linear, outputs)

    def in_units(self, scaled: Any, outputs: int) -> Any:
        """Return outputs that are relative to the window, [b, outputs], as the targets are."""
        if self.level is None:
            return scaled
        by_target = ops.reshape(scaled, (-1, self.facts.horizon, self.facts.targets, outputs // self._answered))
        return ops.reshape(by_target * self.scale + self.level, (-1, outputs))

    @property
    def _answered(self) -> int:
        return self.facts.horizon * self.facts.targets

    def model(self, outputs: Any, name: str) -> keras.Model:
        """Return the network."""
        given = self.inputs if len(self.inputs) > 1 else next(iter(self.inputs.values()))
        return keras.Model(given, outputs, name=name)


def _joined(parts: list[Any]) -> Any:
    return None if not parts else parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)


def causal_cnn(  # noqa: PLR0913  # each is a setting or a fact
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    filters: int,
    kernel_size: int,
    dropout: float,
    scale_windows: bool,
    series: SeriesFacts,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Return a network of causal convolutions, whose dilation doubles until they see the whole window.

    Source: Bai, Kolter and Koltun 2018 (arXiv:1803.01271).

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        filters: The filters of each convolution.
        kernel_size: The steps of each convolution.
        dropout: The fraction of units that are dropped before the last layers.
        scale_windows: Whether each window is scaled by its own mean and standard deviation.
        series: Facts about the windows.
        categories: From inputs of indices to the number of different ones.
    """
    steps = Steps.of(input_shape, categories or {}, series, scale_windows)
    value, seen, dilation = keras.layers.Conv1D(filters, 1)(steps.past), 1, 1
    while seen < series.window:
        layer = keras.layers.Conv1D(filters, kernel_size, padding="causal", dilation_rate=dilation, activation="relu")
        value = keras.layers.Add()([value, layer(value)])
        seen, dilation = seen + (kernel_size - 1) * dilation, 2 * dilation
    context = [value[:, -1]] if series.targets else [value[:, -1], ops.mean(value, axis=1), ops.max(value, axis=1)]
    return steps.model(steps.answers(_joined(context), outputs, filters, dropout), "causal_cnn")


def gru(  # noqa: PLR0913  # each is a setting or a fact
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    units: int,
    dropout: float,
    scale_windows: bool,
    series: SeriesFacts,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Return a network whose GRU reads the window step by step (Cho et al. 2014, arXiv:1406.1078).

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        units: The units of the GRU.
        dropout: The fraction of units that are dropped before the last layers.
        scale_windows: Whether each window is scaled by its own mean and standard deviation.
        series: Facts about the windows.
        categories: From inputs of indices to the number of different ones.
    """
    steps = Steps.of(input_shape, categories or {}, series, scale_windows)
    value = keras.layers.GRU(units)(steps.past)
    return steps.model(steps.answers(value, outputs, units, dropout), "gru")


def nbeats(  # noqa: PLR0913  # each is a setting or a fact
    input_shape: tuple[int, ...] | Shapes,
    outputs: int,
    hidden: list[int],
    blocks: int,
    dropout: float,
    scale_windows: bool,
    series: SeriesFacts,
    categories: Mapping[str, int] | None = None,
) -> keras.Model:
    """Return a network of residual blocks, each of which explains a part of the past and of the next values.

    Sources: Oreshkin et al. 2020 (arXiv:1905.10437); with other columns, Olivares et al. 2021 (arXiv:2104.05522).

    Args:
        input_shape: The shape of the past, or of all inputs by name.
        outputs: The number of outputs.
        hidden: The units of the dense layers of a block.
        blocks: The number of blocks.
        dropout: The fraction of units that are dropped behind each layer.
        scale_windows: Whether each window is scaled by its own mean and standard deviation.
        series: Facts about the windows.
        categories: From inputs of indices to the number of different ones.
    """
    if not series.targets:
        problem = "model=nbeats predicts next values, but the data has one class or number for each series"
        raise UserError(problem, "a network for windows with one target", "model=auto")
    steps = Steps.of(input_shape, categories or {}, series, scale_windows)
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
    return steps.model(steps.in_units(total, outputs), "nbeats")
