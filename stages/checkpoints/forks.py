"""Forks: the weights of another run that a training starts from, and the state that comes with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from stages.checkpoints.files import EMA, Checkpoint
from stages.checkpoints.progress import Progress
from stages.checkpoints.state import decoded
from stages.reporter import Reporter

BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Best:
    """The best weights in a checkpoint, in the order of `keras.Model.weights`; epoch: counted from 1."""

    epoch: int
    value: float
    weights: list[np.ndarray]


def best_of(checkpoint: Checkpoint) -> Best | None:
    """Returns the best weights so far of the run that wrote `checkpoint`, or None before its first validation."""
    for callback in checkpoint.facts["callbacks"]:
        if callback["kind"] == "BestWeights" and callback["state"].get("weights"):
            state = {key: decoded(value, checkpoint.arrays) for key, value in callback["state"].items()}
            return Best(int(state["best_epoch"]), float(state["best_value"]), state["weights"])
    return None


def forked(checkpoint: Checkpoint, network: keras.Model) -> Checkpoint:
    """Returns the checkpoint of another run as a fork starts from it; one of this run unchanged.

    With `fork_weights=last` the fork continues it exactly: weights, optimizer, epoch, step. With `best` it starts from
    the weights that the other run reported and exported. Where these are not the last ones, the fork starts at the end
    of their epoch; the optimizer, whose state is that of the last step, and the EMA start again, and the learning rate
    continues at its place in the schedule.
    """
    if not checkpoint.is_fork:
        return checkpoint
    facts = checkpoint.facts
    progress: Mapping[str, Any] = facts["progress"]
    origin: dict[str, Any] = {"weights": LAST, "run": "", **facts.get("forked", {})}
    result = {"restore_best": True, "monitor": "val_loss", **facts.get("result", {})}
    epoch, is_whole = int(progress["epoch"]), progress["done"] == 0
    place = f"epoch {epoch}" if is_whole else f"epoch {epoch + 1}, step {facts['step']}"
    best = best_of(checkpoint)
    value = f", {result['monitor']} {best.value:.4f}" if best is not None else ""
    origin["what"] = f"weights of {place} (best and last{value})"
    if origin["weights"] == LAST:
        origin["what"] = f"weights of {place} (the last)"
    elif not result["restore_best"]:
        origin["what"] = f"weights of {place} (the last, as train.restore_best=false keeps them)"
    elif best is not None and not (is_whole and best.epoch == epoch):
        origin |= {"what": f"weights of epoch {best.epoch} (best{value})", "fresh": True}
        arrays = dict(checkpoint.arrays)
        if len(best.weights) == len(network.weights):  # another network is refused later
            progress = _at_epoch(progress, best.epoch)
            places = {id(variable): index for index, variable in enumerate(network.variables)}
            weights = zip(network.weights, best.weights, strict=True)
            arrays |= {f"model.{places[id(variable)]}": array for variable, array in weights}
        facts = {**facts, "progress": progress, "callbacks": [], "parts": {**facts["parts"], EMA: None}}
        checkpoint = Checkpoint(facts, arrays)
    return checkpoint.with_facts(forked=origin)


def with_schedule(checkpoint: Checkpoint, per_epoch: int) -> Checkpoint:
    """Returns a fork whose optimizer starts again with its schedule continued: `progress.shift`, in steps."""
    if not checkpoint.is_fork or not checkpoint.facts.get("forked", {}).get("fresh"):
        return checkpoint
    progress = dict(checkpoint.facts["progress"])
    progress["shift"] = (int(progress["epoch"]) - int(progress.get("began", 0))) * per_epoch
    return checkpoint.with_facts(progress=progress)


def report_fork(facts: Mapping[str, Any], progress: Progress, scores: Mapping[str, float], reporter: Reporter) -> None:
    """Notes the scores with which a fork starts in its progress, and says in a line what it starts from.

    Args:
        facts: of the checkpoint. scores: loss and accuracy of the weights on validation.
    """
    progress.start = {f"val/start_{name}": value for name, value in scores.items()}
    origin = facts.get("forked", {})
    optimizer = "the optimizer starts again, its schedule continues" if origin.get("fresh") else "with their optimizer"
    measured = ", ".join(f"val_{name} {value:.4f}" for name, value in scores.items())
    source = f"forked from {origin['run']}" if origin.get("run") else "forked"
    reporter.log(
        f"{source}: {origin.get('what', 'weights')}, {optimizer}; here {measured}; epoch {progress.epoch + 1} is next"
    )


def _at_epoch(progress: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Returns the progress of a run as of the end of an earlier `epoch`, counted from 1."""
    in_phase = epoch > int(progress.get("began", 0))
    phase = {"phase": progress.get("phase", 0), "began": progress.get("began", 0)} if in_phase else {}
    return {**progress, "phase": 0, "began": 0, **phase, "epoch": epoch, "done": 0}
