"""Training and predicting with the default of tables against the fast choice, `model=mlp`, measured in turns.

    python -m benchmarks.table_speed [--page docs/how-it-works/tables.md] [--rounds 5]

Rows per second for California's houses, in one process: an epoch of training in batches of 256, and predictions from
raw columns in batches of 256 and 4,096. In brackets: the time relative to `model=mlp`, the median of rounds.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.measuring import Spread, interleave, ratios, timed
from benchmarks.models import built, device, trained_by_adam, training_loop
from benchmarks.page import markdown, put
from benchmarks.processes import DATA
from stages.data.examples import network_input
from stages.load.table import table
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings, TabularSettings
from stages.settings.table import TableSettings

NETWORKS: dict[str, Any] = {
    "model=mlp": MlpSettings(),
    "model=tabular": TabularSettings(),
    "model.network.members=4": TabularSettings(members=4),
    "model.network.members=1": TabularSettings(members=1),
}
BATCHES = (256, 4096)


def main() -> None:
    """Print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a document with the marks `table_speed:begin` and `table_speed:end`")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    path = DATA / "tables" / "california_housing.csv"
    settings = TableSettings(files=str(path), target="median_house_value", split_seed=1)
    dataset = normalize(table(settings), NormalizeSettings())
    rows = {name: [name] for name in NETWORKS}
    for work in (partial(training, dataset), *(partial(predicting, dataset, batch=batch) for batch in BATCHES)):
        prepared = {name: work(network) for name, network in NETWORKS.items()}
        counts = {name: count for name, (_, count) in prepared.items()}
        samples = interleave({name: timed(function) for name, (function, _) in prepared.items()}, given.rounds, 1)
        seconds = {name: samples[name]["seconds"] for name in NETWORKS}
        for name, row in rows.items():
            ratio = Spread.of(ratios(seconds[name], seconds["model=mlp"])).median
            row.append(f"{counts[name] / Spread.of(seconds[name]).median:,.0f} ({ratio:.2f})")
    header = ("network", "training", *(f"predictions, batches of {batch:,}" for batch in BATCHES))
    text = markdown(header, rows.values())
    print(text)
    if given.page is not None:
        put(given.page, "table_speed", text)


def training(dataset: Dataset, network: Any) -> tuple[Callable[[], object], int]:
    """Return a function that trains for an epoch, and the number of rows."""
    where, steps = device(), len(dataset.train) // 256
    loop = training_loop(dataset, where, built(dataset, where, network), trained_by_adam(256, steps))
    starts = count(0, steps)
    return lambda: loop.run(next(starts), steps), steps * 256


def predicting(dataset: Dataset, network: Any, batch: int) -> tuple[Callable[[], object], int]:
    """Return a function that predicts from raw columns, and the number of rows."""
    assert dataset.encoder is not None
    encoder, model = dataset.encoder, built(dataset, device(), network)
    rows = 4 * max(BATCHES)
    columns = {name: tf.constant(dataset.train.features[name][:rows]) for name in dataset.features}

    @tf.function(autograph=False)
    def predict(columns: dict[str, tf.Tensor]) -> tf.Tensor:
        inputs = network_input(encoder(columns, training=False))
        return model.task.head.predictions(model.network(inputs, training=False))

    parts = [{name: value[start : start + batch] for name, value in columns.items()} for start in range(0, rows, batch)]
    return lambda: [predict(part) for part in parts][-1].numpy(), rows


if __name__ == "__main__":
    main()
