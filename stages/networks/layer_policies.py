"""Precision by layer: dtype policies for the layers whose names match patterns, set while they are made."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import keras

from stages.errors import UserError
from stages.networks.keras_internals import reset_names
from stages.settings.model import POLICIES_OF_LAYERS

_NO_COMPUTATION = (keras.Model, keras.layers.InputLayer)
"""Layers that compute nothing by themselves: those within them have policies of their own."""


@contextmanager
def layer_policies(patterns: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Gives layers that are made in the block the policy of the first pattern that matches their names.

    So it holds for networks of any kind: sequential, functional, subclassed, of keras.applications, with layers in
    layers. A layer that its network gives a dtype of its own, such as a last layer in float32, keeps it unless a
    pattern is its whole name. Names are counted from the beginning, so that a network built again has the same.

    Yields:
        the policy of each layer that a pattern has matched, by its name; complete at the end of the block.

    Raises:
        UserError: at the end of the block, for a pattern that has matched no layer.
    """
    matched: dict[str, str] = {}
    if not patterns:
        yield matched
        return
    names: list[str] = []
    used: set[str] = set()
    original = keras.layers.Layer.__init__

    @wraps(original)
    def init(self: keras.layers.Layer, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if isinstance(self, _NO_COMPUTATION):
            return
        has_own = options.get("dtype") is not None
        names.append(self.name)
        for pattern, policy in patterns.items():
            if fnmatchcase(self.name, pattern):
                used.add(pattern)
                if not has_own or pattern == self.name:
                    self.dtype_policy = policy
                    matched[self.name] = policy
                break

    reset_names()
    keras.layers.Layer.__init__ = init
    try:
        yield matched
    finally:
        keras.layers.Layer.__init__ = original
    for pattern in patterns:
        if pattern not in used:
            shadowed = any(fnmatchcase(name, pattern) for name in names)
            raise UserError(
                f"precision.layers: {pattern} "
                + ("comes after patterns that match its layers" if shadowed else "is the name of no layer"),
                "the special ones first" if shadowed else list(dict.fromkeys(names)),
                "'precision.layers={conv2d*: mixed_bfloat16}'",
            )


def effective_policy(policy: str, layers: Mapping[str, str]) -> str:
    """Returns the policy by which a network with these layers is trained and exported: that of the fewest digits.

    With float16 in any layer the loss is scaled; with half precision in any, exported files may differ by more.
    """
    return min((policy, *layers.values()), key=POLICIES_OF_LAYERS.index) if layers else policy
