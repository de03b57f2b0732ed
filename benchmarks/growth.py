"""Growth: examples, jobs of a sweep, runs in a comparison. Its exponent is 1 where twice as many take twice as long."""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.made_runs import grid, make_sweep
from benchmarks.measuring import Samples, exponent, interleave, timed
from benchmarks.processes import pipeline, python

SEEDS = 5


def examples(rounds: int) -> Samples:
    """Measure images of 8×8 pixels made, normalized, described and taken through an epoch's input, in one process."""
    return _grown({size: partial(_epoch, size) for size in (1_000, 10_000, 100_000, 1_000_000)}, rounds)


def jobs(rounds: int) -> Samples:
    """Measure whole sweeps of jobs that load the digits and do no more."""
    left_out = [f"pipeline.{stage}=null" for stage in ("inspect", "train", "evaluate", "export")]

    def sweep(size: int) -> None:
        with tempfile.TemporaryDirectory() as outputs:
            pipeline(Path(outputs), "sweep=seeds", f"sweep.n={size}", *left_out)

    return _grown({size: partial(sweep, size) for size in (1, 8, 64)}, rounds)


def comparison(rounds: int) -> Samples:
    """Measure `python -m pipeline compare` of runs with 10 epochs and 360 predictions, five seeds a setting."""
    with tempfile.TemporaryDirectory() as scratch:
        ways: dict[int, Callable[[], object]] = {}
        for size in (10, 100, 1000):
            sweep = make_sweep(Path(scratch) / str(size), grid(size // SEEDS, SEEDS))
            ways[size] = partial(python, "-m", "pipeline", "compare", str(sweep))
        return _grown(ways, rounds)


def _grown(works: Mapping[int, Callable[[], object]], rounds: int) -> Samples:
    """Measure the works by their sizes, and add the exponent of their growth in each round."""
    works[min(works)]()  # loads what all need
    samples = interleave({f"{size:,}": timed(work) for size, work in works.items()}, rounds)
    by_round = zip(*(figures["seconds"] for figures in samples.values()), strict=True)
    return {**samples, "growth": {"exponent": [exponent([*works], seconds) for seconds in by_round]}}


def _epoch(size: int) -> None:
    import tensorflow as tf

    from benchmarks.models import images
    from stages.data.batches import training_input

    for _ in training_input(images(size, 8, channels=1), 64, 1, 1)(tf.distribute.InputContext()):
        pass
