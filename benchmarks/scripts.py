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
    """Measure three epochs of the MNIST convnet against scripts for Keras and PyTorch, from `python` to exit.

    The project also tracks, tests, exports and verifies; the others train and validate. PyTorch takes part where
    .bench-venv has it.
    """
    keras, torch = "benchmarks.baselines.keras_mnist", others_python("torch")
    with tempfile.TemporaryDirectory() as folder:
        times, arrays = Path(folder) / "times.json", str(Path(folder) / "mnist.npz")

        def unprepared() -> Figures:
            with tempfile.TemporaryDirectory() as outputs:
                return _mnist_run(Path(outputs), times)

        tutorial = partial(python, "-m", keras, str(prepared("mnist")), str(times))
        processes: dict[str, Callable[[], Figures]] = {
            "pipeline": partial(_mnist_run, with_images(Path(folder)), times),
            "pipeline, unprepared": unprepared,
            "Keras tutorial": tutorial,
            "Keras tutorial, cached": partial(tutorial, "cached"),
        }
        if torch is not None:
            python("-m", "benchmarks.baselines.as_arrays", str(prepared("mnist")), arrays)
            script = partial(cost, torch, "benchmarks/baselines/torch_mnist.py", arrays, str(times))
            processes |= {"PyTorch": script, "PyTorch, compiled": partial(script, "compiled")}
        return interleave({name: with_epochs(process, times) for name, process in processes.items()}, rounds)


def _mnist_run(outputs: Path, times: Path) -> Figures:
    callback = f"train.callbacks=[{{_target_:benchmarks.callbacks.EpochTimes,path:{times}}}]"
    data = f"data.dir={prepared('mnist')}"
    return pipeline(outputs, "experiment=mnist_cnn", data, "train.batch_size=128", callback)


def with_images(outputs: Path) -> Path:
    """Prepare MNIST's images in `outputs`, which it returns."""
    left_out = [f"pipeline.{stage}=null" for stage in ("inspect", "train", "evaluate", "export")]
    pipeline(outputs, "experiment=mnist_cnn", f"data.dir={prepared('mnist')}", "tracking=off", *left_out)
    return outputs


def flowers(rounds: int) -> Samples:
    """Measure two epochs of `flowers_cnn` at 96 pixels without augmentation, and the tutorials' script."""
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
    """Add to what a process costs the seconds of training in its first and in its later epochs, which it writes."""

    def way() -> Figures:
        figures = process()
        first, *later = json.loads(times.read_text())["training"]
        return {**figures, "first epoch": first, "later epochs": statistics.median(later)}

    return way
