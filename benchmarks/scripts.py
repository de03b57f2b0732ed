"""Whole processes: experiments of the project against the scripts that a user would write by hand."""

import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measuring import Figures, Samples, UnavailableError, Way, interleave
from benchmarks.processes import cost, others_python, pipeline, prepared, python


def mnist(rounds: int) -> Samples:
    """Measures three epochs of the MNIST convnet against the Keras tutorial's script, from `python` to exit.

    The project also tracks, tests, exports and verifies; the others train and validate.
    """
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        script = partial(python, "-m", "benchmarks.baselines.keras_mnist", str(prepared("mnist")), str(times))
        ways = {
            "pipeline": with_epochs(partial(_mnist_run, _with_images(Path(folder)), times), times),
            "Keras tutorial": with_epochs(script, times),
            "Keras tutorial, cached": with_epochs(partial(script, "cached"), times),
        }
        return interleave(ways, rounds)


def mnist_unprepared(rounds: int) -> Samples:
    """Measures the same where the project has yet to prepare the images."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        script = partial(python, "-m", "benchmarks.baselines.keras_mnist", str(prepared("mnist")), str(times))

        def unprepared() -> Figures:
            with tempfile.TemporaryDirectory() as outputs:
                return _mnist_run(Path(outputs), times)

        ways: dict[str, Way] = {
            "pipeline": unprepared,
            "Keras tutorial": script,
            "Keras tutorial, cached": partial(script, "cached"),
        }
        return interleave(ways, rounds)


def mnist_torch(rounds: int) -> Samples:
    """Measures the same against PyTorch."""
    torch = others_python("torch")
    if torch is None:
        raise UnavailableError("no PyTorch in .bench-venv, which `make bench` makes")
    with tempfile.TemporaryDirectory() as folder:
        times, images = Path(folder) / "times.json", str(Path(folder) / "mnist.npz")
        python("-m", "benchmarks.baselines.as_arrays", str(prepared("mnist")), images)
        script = partial(cost, torch, "benchmarks/baselines/torch_mnist.py", images, str(times))
        ways = {
            "pipeline": with_epochs(partial(_mnist_run, _with_images(Path(folder)), times), times),
            "PyTorch": with_epochs(script, times),
            "PyTorch, compiled": with_epochs(partial(script, "compiled"), times),
        }
        return interleave(ways, rounds)


def _mnist_run(outputs: Path, times: Path) -> Figures:
    callback = f"train.callbacks=[{{_target_:benchmarks.callbacks.EpochTimes,path:{times}}}]"
    data = f"data.dir={prepared('mnist')}"
    return pipeline(outputs, "experiment=mnist_cnn", data, "train.batch_size=128", callback)


def _with_images(outputs: Path) -> Path:
    """Prepares MNIST's images in `outputs`, which it returns."""
    left_out = [f"pipeline.{stage}=null" for stage in ("inspect", "train", "evaluate", "export")]
    pipeline(outputs, "experiment=mnist_cnn", f"data.dir={prepared('mnist')}", "tracking=off", *left_out)
    return outputs


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
