"""`python -m benchmarks.augment`: images per second of the input, for each kind of augmentation.

96×96×3 images in batches of 32, nothing else running. All ways take turns, five rounds; the figures are medians, and
only their ratios to the input that changes nothing mean anything on a shared machine. The last column is the time that
one example takes: an input is fast enough where training needs longer.
"""

import dataclasses
import statistics
import time

import tensorflow as tf
from omegaconf import OmegaConf

from benchmarks.measuring import Figures, Way, interleave
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from stages.augment import augment
from stages.data.batches import training_input
from stages.load.synthetic import synthetic
from stages.results import Dataset
from stages.settings.data import AugmentSettings, SyntheticSettings

BATCH, STEPS, ROUNDS = 32, 40, 5


def option(name: str) -> AugmentSettings:
    """Return what `augment=<name>` sets."""
    settings = OmegaConf.to_object(Composer(read_arguments([f"augment={name}"])).one().document.augment)
    assert isinstance(settings, AugmentSettings)
    return settings


def way(dataset: Dataset, settings: AugmentSettings) -> Way:
    """Return what takes STEPS batches from an input that does not end soon."""
    source = training_input(augment(dataset, settings), BATCH, seed=1, epochs=10_000)
    batches = iter(source(tf.distribute.InputContext(1, 0, 1)))

    def take() -> Figures:
        for _ in range(8):  # what has been made while the others ran
            next(batches)
        began = time.perf_counter()
        for _ in range(STEPS):
            next(batches)
        return {"seconds": time.perf_counter() - began}

    return take


def main() -> None:
    dataset = synthetic(SyntheticSettings(examples=1024, height=96, width=96, split_seed=1))
    strong = option("strong")
    settings = {
        "none": option("none"),
        "flip": option("flip"),
        "flip_rotate": option("flip_rotate"),
        "strong, no mixing": dataclasses.replace(strong, mixup=0.0, cutmix=0.0),
        "strong": strong,
    }
    samples = interleave({name: way(dataset, chosen) for name, chosen in settings.items()}, ROUNDS, warm_up=1)
    rates = {name: BATCH * STEPS / statistics.median(figures["seconds"]) for name, figures in samples.items()}
    print(f"{'augment':20} {'images/s':>10} {'of none':>8} {'ms each':>8}")
    for name, rate in rates.items():
        print(f"{name:20} {rate:10,.0f} {rate / rates['none']:8.3f} {1000 / rate:8.2f}")


if __name__ == "__main__":
    main()
