"""Reuse of a stage's saved result by a later run, which then does not run the stage again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VALIDATED = "val_examples"
"""In the facts of a summary: a digest of the examples by which the best epoch was chosen."""

VALIDATED_PIXELS = "val_pixels"
"""In the facts of a summary: the kind of their images, and a digest of all their pixels."""

VALIDATED_LOSS = "val_loss"
"""In the facts of a summary: settings of a loss that is not the task's, and PENALIZED where a network adds to it."""

PENALIZED = "penalized"

KNOWN_IMAGES = "known_test_images"
"""In the facts of a summary: how many test examples a reused model was trained on."""


@dataclass(frozen=True)
class Reuse:
    """The functions that save and restore the result of a stage.

    Both functions take results of earlier stages by their names, as stages do.

    save: takes the result, a new folder, and any inputs of the stage.
    restore: takes that folder as `saved`, and what the stage may take; returns the result as the stage would.
    """

    save: Callable[..., None]
    restore: Callable[..., Any]


def allow_reuse(function: Callable[..., Any], save: Callable[..., None], restore: Callable[..., Any]) -> None:
    """Register how the result of a stage's function is saved and restored; see `Reuse`.

    Call it after the definition of the function. It is not a decorator, because the parameters of a stage are read from
    its source without importing it, and a decorator would hide them.
    """
    function.__dict__["reuse"] = Reuse(save, restore)


def reuse_of(function: Callable[..., Any]) -> Reuse | None:
    """Returns how the result of a stage is saved and restored; None where the stage runs again each time."""
    reuse = getattr(function, "reuse", None)
    return reuse if isinstance(reuse, Reuse) else None
