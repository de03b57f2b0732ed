"""The input alone, without a model: prepared images against the TFDS tutorials, in processes of their own, interleaved.

    python -m benchmarks.input [--dir <where TFDS keeps tf_flowers>]

Seconds to open the data set in a process that has imported all it needs; images per second of the first epoch, with the
making of the iterator, and of later ones; peak resident memory of the process. Medians over the rounds.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.system import environment

SIZE, BATCH, EPOCHS, ROUNDS = 96, 32, 4, 3


def main() -> None:
    """Measures one way, where it is named, else all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=os.environ.get("TFDS_DATA_DIR", "../shared/data/tfds"))
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--cache")
    given = parser.parse_args()
    if given.way:
        print(json.dumps(_measure(given.way, str(Path(given.dir).resolve()), Path(given.cache))))
        return
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    cache = tempfile.mkdtemp()
    try:
        _apart("prepared", given.dir, cache)  # the run that prepares
        for _ in range(ROUNDS):
            for way in WAYS:
                rows[way].append(_apart(way, given.dir, cache))
    finally:
        shutil.rmtree(cache)
    median = {way: {key: statistics.median(row[key] for row in rows[way]) for key in rows[way][0]} for way in WAYS}
    print(f"tf_flowers at {SIZE} px, batches of {BATCH}, median of {ROUNDS} rounds\n")
    columns = ("way", "opened in, s", "first epoch, images/s", "later epochs, images/s", "peak, MB", "before, MB")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    for way, row in median.items():
        rates = f"{row['first']:,.0f} | {row['later']:,.0f}"
        print(f"| {way} | {row['opened']:.2f} | {rates} | {row['peak']:,.0f} | {row['before']:,.0f} |")
    ratio = {key: median["prepared"][key] / median["tutorial"][key] for key in ("first", "later", "peak")}
    print(f"| prepared / tutorial | | {ratio['first']:.1f} | {ratio['later']:.1f} | {ratio['peak']:.2f} | |")


def _apart(way: str, folder: str, cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.input", "--way", way, "--dir", folder, "--cache", cache]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(way: str, folder: str, cache: Path) -> dict[str, float]:
    environment.prepare()
    with environment.quiet_stderr():
        import tensorflow as tf
        import tensorflow_datasets  # noqa: F401

        import stages.data.batches
        import stages.load.tfds  # noqa: F401

        tf.constant(0.0)
    before, rates, began = _peak(), [], time.perf_counter()
    epoch = WAYS[way](folder, cache)
    opened, began = time.perf_counter() - began, time.perf_counter()
    for _ in range(EPOCHS):
        examples = sum(int(batch[1].shape[0]) for batch in epoch())
        rates.append(examples / (time.perf_counter() - began))
        began = time.perf_counter()
    later = statistics.median(rates[1:])
    return {"opened": opened, "first": rates[0], "later": later, "peak": _peak(), "before": before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def _tutorial(folder: str, cache: Path) -> Callable[[], Iterable[tuple[Any, ...]]]:
    """Source: tensorflow.org/datasets/keras_example and tensorflow.org/tutorials/load_data/images."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    source = tfds.load("tf_flowers", split="train", data_dir=folder, as_supervised=True, download=False)
    batches = source.map(lambda image, label: (tf.image.resize(image, [SIZE, SIZE]), label)).shuffle(1000).batch(BATCH)
    return lambda: batches


def _prepared(folder: str, cache: Path) -> Callable[[], Iterable[tuple[Any, ...]]]:
    import tensorflow as tf

    from stages.data.batches import training_input
    from stages.load.tfds import tfds
    from stages.settings.data import TfdsSettings

    given = TfdsSettings(name="tf_flowers", dir=folder, size=SIZE, split_seed=1, val_fraction=0.01, test_fraction=0.01)
    dataset = tfds(given, cache=cache)
    per_epoch = -(-len(dataset.train) // BATCH)
    source = training_input(dataset, BATCH, 1, EPOCHS + 1)
    batches: list[Iterator[tuple[Any, ...]]] = []

    def epoch() -> Iterable[tuple[Any, ...]]:
        if not batches:
            batches.append(iter(source(tf.distribute.InputContext())))
        return (next(batches[0]) for _ in range(per_epoch))

    return epoch


WAYS = {"tutorial": _tutorial, "prepared": _prepared}

if __name__ == "__main__":
    main()
