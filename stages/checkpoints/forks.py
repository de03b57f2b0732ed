"""Forks: trainings that start from the checkpoint of another run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.checkpoints.attributes import decoded
from stages.checkpoints.files import Checkpoint, newest, write
from stages.checkpoints.names import AVERAGES, MODEL, SLOTS, START, STEPS
from stages.checkpoints.progress import Progress
from stages.errors import UserError
from stages.reporter import Reporter

BEST, LAST = "best", "last"


def start_from(source: Path, folder: Path, weights: str = LAST, run: str = "") -> None:
    """Write the checkpoint that a fork starts from to `folder`, from the last intact checkpoint in `source`.

    With `last`, the fork continues the other run exactly, with its weights, optimizer, epoch and step. With `best`, it
    starts from the weights that the other run reported, at the end of their epoch. The optimizer and the EMA start from
    scratch then, because their state belongs to the last step, and the learning rate continues at this point of its
    schedule. A run with `train.restore_best=false`, or stopped in its first epoch, only has the last weights.

    Args:
        source: The folder of the other run's checkpoints.
        folder: The folder of the fork's checkpoints.
        weights: `best` or `last`.
        run: The name of the other run.

    Raises:
        UserError: If `source` does not contain an intact checkpoint.
    """
    checkpoint = newest(source, lambda line: None)
    if checkpoint is None:
        raise UserError(f"{source} does not contain an intact checkpoint", "a run with one")
    if not checkpoint.is_fork:  # the start of a fork that has not written a checkpoint is copied unchanged
        reports_best = checkpoint.facts["result"]["restore_best"]
        checkpoint = _best(checkpoint) if weights == BEST and reports_best else _last(checkpoint)
    write(checkpoint.with_facts(forked={**checkpoint.facts["forked"], "run": run}), folder / START)


def _last(checkpoint: Checkpoint) -> Checkpoint:
    progress = Progress.of(checkpoint.facts["progress"])
    place = f"epoch {progress.epoch + 1}, step {progress.step}" if progress.done else f"epoch {progress.epoch}"
    return checkpoint.with_facts(forked={"what": f"weights of {place} (the last)", "fresh": False})


def _best(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint of the best weights at the end of their epoch, without the optimizer's state."""
    facts = checkpoint.facts
    [saved] = [callback["state"] for callback in facts["callbacks"] if callback["kind"] == "BestWeights"]
    best = {key: decoded(value, checkpoint.arrays) for key, value in saved.items()}
    if not best.get("weights"):  # it was stopped in its first epoch
        return _last(checkpoint)
    arrays = {**checkpoint.arrays, **{f"{MODEL}.{index}": array for index, array in enumerate(best["weights"])}}
    parts = {**facts["parts"], SLOTS: None, STEPS: None, AVERAGES: None}
    what = f"weights of epoch {best['best_epoch']} (best, {facts['result']['monitor']} {best['best_value']:.4f})"
    forked = {"what": what, "fresh": True}
    facts = {**facts, "callbacks": [], "parts": parts, "forked": forked}
    return Checkpoint(facts, arrays).with_progress(**at_epoch(facts["progress"], int(best["best_epoch"])))


def at_epoch(progress: Mapping[str, Any], epoch: int) -> dict[str, int]:
    """Return the fields of the progress of a run that differ at the end of an earlier `epoch`, counted from 1."""
    in_phase = epoch > progress["began"]
    return {"epoch": epoch, "done": 0} | ({} if in_phase else {"phase": 0, "began": 0})


def report_fork(facts: Mapping[str, Any], optimizer: str, progress: Progress, reporter: Reporter) -> None:
    """Report in one line what a fork starts from.

    Args:
        facts: The facts of the checkpoint.
        optimizer: The description of the optimizer's state; see `Resumable.optimizer`.
        progress: The progress of the fork.
        reporter: Receives the line.
    """
    origin = facts["forked"]
    source = f"forked from {origin['run']}" if origin["run"] else "forked"
    reporter.log(f"{source}: {origin['what']}, {optimizer}; training continues with epoch {progress.epoch + 1}")
