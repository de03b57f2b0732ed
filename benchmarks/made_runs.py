"""Folders of runs as runs leave them, made without training: summary, journal, predictions, a sweep's index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.runs.facts import Facts
from pipeline.runs.journal import Journal
from pipeline.runs.summary import Summary
from pipeline.sweep.index import write_index
from pipeline.sweep.jobs import slug

CLASSES = 10


@dataclass(frozen=True)
class MadeRun:
    """A run to be made.

    settings: its overrides. correct: whether it classifies each test example correctly, bool [n]; None: no predictions.
    speed: in images per second. test_set, test_pixels: the digests that tell its test set from others; validated,
    val_pixels: those of its validation examples. loss: its settings, unless it is usual.
    """

    settings: Mapping[str, str]
    correct: np.ndarray | None
    speed: float = 1000.0
    val_loss: float = 0.5
    epochs: int = 5
    status: str = "FINISHED"
    error: str | None = None
    monitor: str = "val_loss"
    metrics: Mapping[str, float] = field(default_factory=dict)
    test_set: str = "a"
    test_pixels: str = "8x8x1 b"
    devices: Sequence[str] = ("/device:CPU:0",)
    validated: str | None = "c"
    val_pixels: str = "8x8x1/stretch d"
    loss: Mapping[str, Any] | None = None


def make_run(folder: Path, made: MadeRun) -> None:
    """Write the folder of a run."""
    folder.mkdir(parents=True)
    epochs = range(1, made.epochs + 1)
    rows = [
        {"train/loss": 2 / epoch, "train/accuracy": 1 - 1 / (epoch + 1), "val/loss": made.val_loss + 1 / epoch,
         "val/accuracy": 1 - 1.1 / (epoch + 1)} for epoch in epochs
    ]  # fmt: skip
    metrics: dict[str, float] = {
        **rows[-1],
        "train/images_per_second": made.speed,
        "train/weights_epoch": float(made.epochs),
        "val/best_loss": made.val_loss,
        "val/best_accuracy": 1 - made.val_loss / 5,
        "memory/peak_mib": 512.0,
        "export/max_abs_diff": 1e-7,
    }
    if made.correct is not None:
        metrics["test/accuracy"] = float(made.correct.mean())
        _write_predictions(folder / "predictions.parquet", made.correct)
    facts = Facts(
        test_examples=made.test_set,
        test_pixels=made.test_pixels,
        val_examples=made.validated or None,
        val_pixels=made.val_pixels if made.validated else None,
        val_loss={**made.loss} if made.loss else None,
        others={"devices": list(made.devices)},
    )
    Summary(
        run_id=None,
        status=made.status,
        name="made",
        folder=folder,
        choices={"data": "digits", **{name: value for name, value in made.settings.items() if "." not in name}},
        overrides=[f"{name}={value}" for name, value in made.settings.items()],
        metrics=metrics | dict(made.metrics),
        seconds=20.0,
        replicas=len(made.devices),
        weights={"epoch": made.epochs, "selection": "best", "monitor": made.monitor, "ema": False},
        facts=facts,
        error=made.error,
    ).write(folder)
    journal = Journal(folder)
    for epoch, row in zip(epochs, rows, strict=True):
        journal.add("metrics", {"values": row, "step": epoch, "time": 0})


def make_sweep(folder: Path, runs: Sequence[MadeRun], indexed: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write the folder of a sweep of `runs` and return it.

    Args:
        indexed: jobs that have no run, as the index lists them.
    """
    folder.mkdir(parents=True)
    jobs: list[Mapping[str, Any]] = []
    for number, run in enumerate(runs, 1):
        overrides = [f"{name}={value}" for name, value in run.settings.items()]
        name = f"{number}_{slug(' '.join(overrides))}"
        make_run(folder / name, run)
        jobs.append({"folder": name, "overrides": overrides, "exit_code": 0 if run.status == "FINISHED" else 1})
    write_index([*jobs, *indexed], folder, "FINISHED")
    return folder


def grid(settings: int, seeds: int, examples: int = 360) -> list[MadeRun]:
    """Return runs of `settings` learning rates by `seeds` seeds, the same in every call.

    Runs share what makes an example hard, and one in fifty settings is better than the others by three points.
    """
    random = np.random.default_rng(0)
    hardness = random.random(examples)
    runs = []
    for number in range(settings):
        accuracy = 0.9 + 0.03 * (number % 50 == 1)
        for seed in range(seeds):
            correct = 0.7 * hardness + 0.3 * random.random(examples) < accuracy
            overrides = {"optimizer.learning_rate": f"{0.001 * (number + 1):.3f}", "seed": str(seed)}
            loss = 1 - accuracy + 0.02 * random.random()
            runs.append(
                MadeRun(overrides, correct, speed=1000 + 10 * number + random.random(), val_loss=loss, epochs=10)
            )
    return runs


def _write_predictions(path: Path, correct: np.ndarray) -> None:
    labels = (np.arange(len(correct)) % CLASSES).astype(np.int32)
    predicted = np.where(correct, labels, (labels + 1) % CLASSES).astype(np.int32)
    probabilities = np.full((len(correct), CLASSES), 0.5 / (CLASSES - 1), np.float32)
    probabilities[np.arange(len(correct)), predicted] = 0.5
    columns = {
        "example": np.arange(len(correct)),
        "label": labels,
        "predicted": predicted,
        "probabilities": pa.FixedSizeListArray.from_arrays(pa.array(probabilities.ravel()), CLASSES),
    }
    pq.write_table(pa.table(columns), path)
