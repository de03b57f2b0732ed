"""Whether a checkpoint fits a training, and which parts of it a fork takes over.

A training describes itself by facts, which its checkpoints contain. They are compared here.
"""

from collections.abc import Mapping
from typing import Any

from stages.checkpoints.names import MODEL, RATE, SLOTS, STEPS, SUMS
from stages.errors import UserError

Facts = Mapping[str, Any]
"""Facts of a training: its `data`, the forms of its `parts`, the `order` of its examples, its `optimizer`, its
`callbacks`, and how its `result` is chosen."""


def check_fits(saved: Facts, current: Facts, is_fork: bool) -> None:
    """Raise UserError if a checkpoint belongs to other data, a different model or, unless it is a fork, other settings.

    Args:
        saved: The facts of the checkpoint.
        current: The facts of this training.
        is_fork: Whether the checkpoint belongs to another run that this training is forked from.
    """
    before, now = _compared(saved, is_fork), _compared(current, is_fork)
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            allowed = "the settings that it was saved with, or fork=<run id>"
            raise UserError(
                f"the checkpoint does not fit this run: {name} was {before.get(name, 'absent')} and is now "
                f"{now.get(name, 'absent')}",
                "a checkpoint of the same data and model" if is_fork else allowed,
                "fork=null" if is_fork else "resume=never",  # a fork would start from the same checkpoint again
            )


def _compared(facts: Facts, is_fork: bool) -> dict[str, object]:
    kinds = [callback["kind"] for callback in facts["callbacks"]]
    own = {} if is_fork else {**facts["order"], "optimizer": facts["optimizer"], "callbacks": kinds}
    parts = (MODEL,) if is_fork else facts["parts"]
    forms = [(f"{part} variable {i}", form) for part in parts for i, form in enumerate(facts["parts"][part])]
    return {**{f"data {name}": value for name, value in facts["data"].items()}, **own, **dict(forms)}


def has_same_epochs(saved: Facts, current: Facts) -> bool:
    """Return whether the epochs of two trainings have the same batches and sums."""
    return bool(saved["order"] == current["order"] and saved["parts"][SUMS] == current["parts"][SUMS])


def parts_for_fork(saved: Facts, current: Facts) -> tuple[list[str], str]:
    """Return the names of the parts that a fork restores, and what happens to the state of the other optimizer."""
    names = [name for name in current["parts"] if name not in (RATE, SUMS)]
    names = [name for name in names if saved["parts"].get(name) == current["parts"][name]]
    if saved["optimizer"] == current["optimizer"] and SLOTS in names:
        return names, "with the state of their optimizer"
    schedule = "continues" if saved["forked"]["fresh"] else "starts again"
    new = f"with a new optimizer, whose learning-rate schedule {schedule}"
    return [name for name in names if name not in (SLOTS, STEPS)], new
