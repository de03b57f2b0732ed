"""The `inspect` stage: numbers and plots of the data that training will see."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from stages.collectives import is_chief
from stages.data import batches
from stages.data.columns import evenly_spread
from stages.data.statistics import log, statistics, write
from stages.features.kinds import IMAGES
from stages.plots.charts import drawable
from stages.plots.galleries import plot_batch, plot_rows
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Record, Strategy
from stages.seeds import derive
from stages.settings.data import InspectSettings

CLASSES = 10
"""Groups in a gallery, such as classes."""

EXAMPLES = 12
"""Images of each group in it."""

BATCH = 32
"""Images of the first batch that are shown."""


def inspect(
    dataset: Dataset,
    settings: InspectSettings,
    strategy: Strategy | None = None,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Record:
    """Returns statistics of the splits, and draws the images that training will see. Changes nothing.

    Args:
        strategy: of several workers only the chief logs and draws. None: this process does.
        reporter: logs a table of the splits, and warns of images that are in two of them.
        folder: the run's; takes `data/statistics.csv`, `data/classes.csv`, and of images `plots/classes.png`,
            `plots/batch.png` and, where they are augmented, `plots/augmentation.png`. None: no files.
    """
    found = statistics(dataset)
    files: dict[str, Sequence[Path]] = {}
    if strategy is None or is_chief(strategy):
        log(found, dataset, reporter or Silent())
        if folder is not None:
            files["data"] = write(found, dataset, folder / "data")
            if dataset.images is not None:
                files["plots"] = draw(dataset, settings, folder / "plots")
    return Record(found.params, files=files)


def draw(dataset: Dataset, settings: InspectSettings, folder: Path) -> list[Path]:
    """Draws the galleries; returns their files."""
    chosen = examples(dataset)
    names = drawable(dataset.task.names)
    pixels = dataset.features[IMAGES].facts["range"]
    labels = [[label] for label in drawable([*chosen])]
    title = f"Training split, {len(chosen)} of {len(dataset.task.groups(dataset.train.targets))} groups"
    rows_of_images = [dataset.train.images[rows] for rows in chosen.values()]
    drawn = [plot_rows(rows_of_images, labels, pixels, title, folder / "classes.png")]
    if dataset.augmentation is not None:
        changed = augmented(dataset, np.stack([row[0] for row in rows_of_images]), EXAMPLES - 1, settings.seed)
        title = f"{title}: an image and {EXAMPLES - 1} augmentations of it"
        drawn.append(plot_rows(list(changed), labels, pixels, title, folder / "augmentation.png"))
    images, targets = first_batch(dataset, settings)
    title = f"Step 1 of training: {len(images)} of its {min(settings.batch_size, len(dataset.train))} images"
    titles = [dataset.task.title(target, names) for target in targets]
    return [*drawn, plot_batch(images, titles, pixels, title, folder / "batch.png")]


def examples(dataset: Dataset) -> dict[str, np.ndarray]:
    """Returns for each of the first CLASSES groups that have any, EXAMPLES rows of the training split, int64 [n].

    They are spread over the whole split, because neighbors are often from one source; fewer where the group has fewer.
    """
    of_class = dataset.task.groups(dataset.train.targets).items()
    present = itertools.islice(((label, rows) for label, rows in of_class if len(rows)), CLASSES)
    return {label: rows[evenly_spread(len(rows), EXAMPLES)] for label, rows in present}


def augmented(dataset: Dataset, originals: np.ndarray, versions: int, seed: int) -> np.ndarray:
    """Returns each image and `versions` of it, float32 [n, 1 + versions, H, W, C], by the training's own function.

    Args:
        originals: uint8 or float32 [n, H, W, C].
        seed: fixes the random numbers; they are not those of any step.
    """
    assert dataset.augmentation is not None
    with tf.device("/cpu:0"):
        repeated = tf.repeat(tf.cast(originals, tf.float32), versions, axis=0)
        shape = [len(originals) * versions, dataset.augmentation.randoms]
        uniforms = tf.random.stateless_uniform(shape, [derive(seed, "inspect", "augment"), 0])
        changed = dataset.augmentation(repeated, uniforms).numpy()
    changed = changed.reshape(len(originals), versions, *originals.shape[1:])
    return np.concatenate([originals[:, np.newaxis].astype(np.float32), changed], axis=1)


def first_batch(dataset: Dataset, settings: InspectSettings) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first BATCH rows of the global batch of training's first step.

    Returns:
        float32 [b, H, W, C] as augmentation leaves them, and labels as the batch has them: int32 [b], or
        float32 [b, classes] where images are mixed.
    """
    batch = batches.first_batch(dataset, settings.batch_size, settings.seed)
    return batch.inputs[IMAGES][:BATCH].numpy(), batch.targets[:BATCH].numpy()
