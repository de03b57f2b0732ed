"""Stages of debug runs: few examples, whether one batch is memorized, and where the time of training went."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stages.callbacks import FOLDER
from stages.collectives import is_chief
from stages.data.columns import Column
from stages.data.split import Split
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import Dataset, Record, Strategy, Trained


@dataclass(kw_only=True)
class ShortenSettings:
    """The part of each split that is left.

    same_batch: whether every step is to train on one batch, which validation takes, too, and evaluation.
    """

    _target_: str = "stages.debug.shorten"
    steps: int = 2
    batch_size: int = 64
    same_batch: bool = False


def shorten(dataset: Dataset, settings: ShortenSettings, reporter: Reporter | None = None) -> Dataset:
    """Return `dataset` with at most `steps` batches in each split.

    The last batch of a shortened split has as many examples as that of the whole one, as it is the one that replicas
    share unevenly. The examples are spread over the split, as it may be sorted by class.
    """
    batch = settings.batch_size
    steps = settings.steps
    splits: dict[str, Any] = {
        name: _taken(split, _count(len(split), batch, steps)) for name, split in dataset.splits.items()
    }
    if settings.same_batch:
        one = _in_memory(_taken(dataset.train, min(batch, len(dataset.train))))
        splits = {"train": one.take(np.tile(np.arange(len(one)), steps)), "val": one, "test": one}
    counts = ", ".join(f"{len(split):,} of {len(dataset.splits[name]):,} {name}" for name, split in splits.items())
    text = f"one batch of {len(splits['val']):,} examples" if settings.same_batch else f"{counts} examples"
    (reporter or Reporter()).log(f"debug run: {text}")
    facts = f"{dataset.fingerprint} {steps} {batch} {settings.same_batch}"
    fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:32]
    shuffled = dataset.is_shuffled and not settings.same_batch
    return replace(dataset, **splits, fingerprint=fingerprint, is_shuffled=shuffled, record=Record())


def _count(examples: int, batch_size: int, steps: int) -> int:
    """Return the number of examples that are left of a split: those of `steps` steps, the last as it is at its end."""
    if examples <= batch_size * steps:
        return examples
    return batch_size * (steps - 1) + (examples % batch_size or batch_size)


def _taken(split: Split, count: int) -> Split:
    """Return `count` examples of a split, at equal distances."""
    return split if count == len(split) else split.take(np.arange(count) * len(split) // count)


def _in_memory(split: Split) -> Split:
    """Return `split` with all columns in memory, which the workers of a parameter server require."""

    def read(columns: Mapping[str, Column]) -> dict[str, Column]:
        return {name: np.asarray(column[:]) for name, column in columns.items()}

    held = replace(split.with_same_values(read(split.features)), targets=np.asarray(split.targets[:]))
    return held if split.encoded is None else held.with_encoded(read(split.encoded.value))


@dataclass(kw_only=True)
class OverfitSettings:
    """The loss below which the batch has been learned; steps of an epoch."""

    _target_: str = "stages.debug.overfit"
    loss: float = 0.01
    steps_per_epoch: int = 10


def overfit(trained: Trained, settings: OverfitSettings, reporter: Reporter | None = None) -> Record:
    """Return the metrics of how many steps the loss of the one batch took to fall below `settings.loss`.

    Raises:
        UserError: where it did not.
    """
    losses = [row["train/loss"] for row in trained.history]
    steps, last = len(losses) * settings.steps_per_epoch, losses[-1]
    if not last <= settings.loss:  # it may be nan
        raise UserError(
            f"the network did not memorize one batch: after {steps:,} steps its loss is {last:.4f} (first "
            f"{losses[0]:.4f}, lowest {min(losses):.4f})",
            f"a loss below {settings.loss:g}",
            "optimizer.learning_rate=<number> debug.steps=<more>",
        )
    (reporter or Reporter()).log(
        f"overfit: the network memorized the batch; the loss fell from {losses[0]:.4f} to {last:.4f} in {steps:,} steps"
    )
    return Record(metrics={"debug/overfit_steps": steps, "debug/overfit_loss": last})


@dataclass(kw_only=True)
class ProfilingSettings:
    """Nothing to set: `debug.traced` says what is traced."""

    _target_: str = "stages.debug.profiling"


def profiling(
    trained: Trained,
    settings: ProfilingSettings,
    strategy: Strategy | None = None,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Record:
    """Log the time of a step, and how to open the trace of some, which it returns.

    Args:
        folder: the run's, with the trace in `profile`.
    """
    reporter, row = reporter or Reporter(), trained.history[-1]
    waited = row.get("train/input_wait_fraction")
    waits = f", of which {waited:.0%} was waiting for input" if waited is not None else ""
    reporter.log(f"a step took {row['train/step_milliseconds']:.1f} ms on average{waits}")
    trace = folder / FOLDER if folder is not None else None
    if trace is None or not trace.is_dir() or (strategy is not None and not is_chief(strategy)):
        return Record()
    if strategy is not None and strategy.coordinator is not None:
        reporter.warn("the trace shows the coordinator, which computes no steps; strategy=one_device shows a worker's")
    reporter.log(f"to view the trace: pip install xprof; xprof --logdir {trace}")
    return Record(files={FOLDER: trace})
