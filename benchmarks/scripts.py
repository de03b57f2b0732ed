"""Whole processes: experiments of the project against the scripts that a user would write by hand."""

import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measuring import Figures, Samples, Way, interleave
from benchmarks.processes import cost, others_python, pipeline, prepared, python


def mnist(rounds: int) -> Samples:
    """Measures three epochs of the MNIST convnet, from `python` to exit, and the training of its later epochs.

    The project also tracks, tests, exports and verifies; the others train and validate.
    """
    tfds = str(prepared("mnist"))
    with tempfile.TemporaryDirectory() as scratch:
        folder, times = Path(scratch), Path(scratch) / "times.json"

        def ours(outputs: Path) -> Figures:
            callback = f"train.callbacks=[{{_target_:benchmarks.callbacks.EpochTimes,path:{times}}}]"
            return pipeline(outputs, "experiment=mnist_cnn", f"data.dir={tfds}", "train.batch_size=128", callback)

        def uncached() -> Figures:
            with tempfile.TemporaryDirectory() as outputs:
                return ours(Path(outputs))

        keras = partial(python, "-m", "benchmarks.baselines.keras_mnist", tfds, str(times))
        ways = {
            "pipeline": with_epochs(partial(ours, folder), times),
            "pipeline, nothing cached": with_epochs(uncached, times),
            "Keras tutorial": with_epochs(keras, times),
            "Keras tutorial, cached": with_epochs(partial(keras, "cached"), times),
        }
        if with_torch := others_python("torch"):
            images = _arrays(folder / "mnist.npz", tfds)
            torch = partial(cost, with_torch, "benchmarks/baselines/torch_mnist.py", str(images), str(times))
            ways["PyTorch"] = with_epochs(torch, times)
            ways["PyTorch, compiled"] = with_epochs(partial(torch, "compiled"), times)
        ways["pipeline"]()  # prepares the images
        return interleave(ways, rounds)


def flowers(rounds: int) -> Samples:
    """Measures two epochs of `flowers_cnn` at 96 pixels without augmentation, and the tutorials' script."""
    tfds, epochs = str(prepared("tf_flowers")), 2
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        settings = (
            "experiment=flowers_cnn", f"data.dir={tfds}", "data.size=96", "strategy=one_device", "augment=none",
            f"train.epochs={epochs}", "schedule.warmup_epochs=0",
            f"train.callbacks=[{{_target_:benchmarks.callbacks.EpochTimes,path:{times}}}]",
        )  # fmt: skip
        script = partial(python, "-m", "benchmarks.baselines.keras_flowers", tfds, str(times), str(epochs))
        ways = {
            "pipeline": with_epochs(partial(pipeline, Path(folder), *settings), times),
            "Keras tutorial": with_epochs(script, times),
        }
        ways["pipeline"]()  # prepares the images
        return interleave(ways, rounds)


def with_epochs(process: Callable[[], Figures], times: Path) -> Way:
    """Adds to what a process costs the seconds of training in its first and in its later epochs, which it writes."""

    def way() -> Figures:
        figures = process()
        first, *later = json.loads(times.read_text())["training"]
        return {**figures, "first epoch": first, "later epochs": statistics.median(later)}

    return way


def _arrays(path: Path, tfds: str) -> Path:
    """Writes MNIST's training images as arrays, for a script without TensorFlow."""
    python("-m", "benchmarks.baselines.as_arrays", tfds, str(path))
    return path
