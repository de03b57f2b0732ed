"""Forks: the checkpoint of another run that a training starts from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.checkpoints.files import Checkpoint, newest, write
from stages.checkpoints.names import START
from stages.checkpoints.state import EMA, Progress, decoded
from stages.errors import UserError
from stages.reporter import Reporter

BEST, LAST = "best", "last"


def start_from(source: Path, folder: Path, weights: str = LAST, run: str = "") -> None:
    """Write the checkpoint in `folder` that a fork starts from, by the last intact one of `source`.

    With `last` the fork continues the other run exactly: weights, optimizer, epoch, step. With `best` it has the
    weights that the other run reported, at the end of their epoch: the optimizer, whose state is that of the last step,
    and the EMA start again, and the learning rate continues at its place in the schedule. A run with
    `train.restore_best=false`, or stopped in its first epoch, has the last ones alone.

    Args:
        run: the name of the run that wrote it.

    Raises:
        UserError: where there is none.
    """
    checkpoint = newest(source, lambda line: None)
    if checkpoint is None:
        raise UserError(f"{source} does not contain an intact checkpoint", "a run with one")
    if not checkpoint.is_fork:  # a fork that has not written a checkpoint of its own passes its start on
        reports_best = checkpoint.facts["result"]["restore_best"]
        checkpoint = _best(checkpoint) if weights == BEST and reports_best else _last(checkpoint)
    write(checkpoint.with_facts(forked={**checkpoint.facts["forked"], "run": run}), folder / START)


def _last(checkpoint: Checkpoint) -> Checkpoint:
    progress = Progress.of(checkpoint.facts["progress"])
    place = f"epoch {progress.epoch + 1}, step {progress.step}" if progress.done else f"epoch {progress.epoch}"
    return checkpoint.with_facts(forked={"what": f"weights of {place} (the last)", "fresh": False})


def _best(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint of the best weights at the end of their epoch, without a state of the optimizer."""
    facts = checkpoint.facts
    [saved] = [callback["state"] for callback in facts["callbacks"] if callback["kind"] == "BestWeights"]
    best = {key: decoded(value, checkpoint.arrays) for key, value in saved.items()}
    if not best.get("weights"):  # it was stopped in its first epoch
        return _last(checkpoint)
    arrays = {**checkpoint.arrays, **{f"model.{index}": array for index, array in enumerate(best["weights"])}}
    parts = {**facts["parts"], "optimizer": None, "steps": None, EMA: None}
    what = f"weights of epoch {best['best_epoch']} (best, {facts['result']['monitor']} {best['best_value']:.4f})"
    forked = {"what": what, "fresh": True}
    facts = {**facts, "callbacks": [], "parts": parts, "forked": forked}
    return Checkpoint(facts, arrays).with_progress(**at_epoch(facts["progress"], int(best["best_epoch"])))


def at_epoch(progress: Mapping[str, Any], epoch: int) -> dict[str, int]:
    """Return what changes in the progress of a run as of the end of an earlier `epoch`, counted from 1."""
    in_phase = epoch > progress["began"]
    return {"epoch": epoch, "done": 0} | ({} if in_phase else {"phase": 0, "began": 0})


def report_fork(facts: Mapping[str, Any], optimizer: str, progress: Progress, reporter: Reporter) -> None:
    """Report in one line what a fork starts from.

    Args:
        facts: of the checkpoint. optimizer: as `State` has it.
    """
    origin = facts["forked"]
    source = f"forked from {origin['run']}" if origin["run"] else "forked"
    reporter.log(f"{source}: {origin['what']}, {optimizer}; training continues with epoch {progress.epoch + 1}")
