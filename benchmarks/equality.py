"""`python -m benchmarks.equality`: how far two mirrored replicas end from one device, after 50 steps on real digits.

The same seed, order and global batch; float32, deterministic, no dropout. The figure is the largest difference over all
weights, and beside it how far the weights have moved in all.
"""

import keras
import numpy as np
import tensorflow as tf

from stages.batches import training_input
from stages.load.digits import digits
from stages.loop import Loop
from stages.model import model
from stages.normalize import normalize
from stages.optimizers import build_optimizer
from stages.results import Dataset, Split, Strategy
from stages.settings.data import DigitsSettings
from stages.settings.images import NormalizeSettings
from stages.settings.model import CnnSettings, ModelSettings, PrecisionSettings
from stages.settings.strategy import MirroredSettings, OneDeviceSettings
from stages.settings.train import AdamSettings, OptimizerSettings, SgdSettings
from stages.strategy import strategy

STEPS = 50
CASES = {
    "896 examples, batch 64: all batches even": (896, 64),
    "900 examples, batch 64: a last batch of 4": (900, 64),
    "897 examples, batch 64: a last batch of 1": (897, 64),
    "900 examples, batch 63: shares of 31 and 32": (900, 63),
}


def weights(where: Strategy, dataset: Dataset, optimizer: OptimizerSettings, batch_size: int, steps: int) -> np.ndarray:
    """Returns all weights after `steps` steps, as one vector."""
    network = CnnSettings(dropout=0.0)
    built = model(dataset, where, ModelSettings(network=network, precision=PrecisionSettings(policy="float32"), seed=1))
    with where.distribution.scope():
        loop = Loop(where, built, build_optimizer(optimizer, optimizer.learning_rate), batch_size, seed=1)
    source = training_input(dataset, batch_size, 1, epochs=100)
    loop.run(iter(where.distribution.distribute_datasets_from_function(source)), 0, steps)
    return np.concatenate([weight.ravel() for weight in built.network.get_weights()])


def main() -> None:
    two = strategy(MirroredSettings(deterministic=True, cpu_replicas=2))
    one = strategy(OneDeviceSettings(deterministic=True, device="/cpu:0"))
    whole = normalize(digits(DigitsSettings(seed=1)), NormalizeSettings())
    print(
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, {STEPS} steps, learning rate 0.01 (SGD), 0.001 (Adam)"
    )
    for optimizer in (SgdSettings(), AdamSettings()):
        for name, (examples, batch_size) in CASES.items():
            train = Split(whole.train.images[:examples], whole.train.labels[:examples])
            dataset = Dataset(**{**vars(whole), "train": train})
            start = weights(one, dataset, optimizer, batch_size, 0)
            first, second = (weights(where, dataset, optimizer, batch_size, STEPS) for where in (one, two))
            moved, apart = np.abs(first - start).max(), np.abs(first - second).max()
            print(f"{optimizer.name:5} {name:44} largest difference {apart:.1e}   moved by {moved:.2f}")


if __name__ == "__main__":
    main()
