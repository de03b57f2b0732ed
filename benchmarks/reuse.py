"""Evaluation again, by `from=evaluate`, against the run that trained."""

import tempfile
from pathlib import Path

from benchmarks.measuring import Figures, Samples, interleave
from benchmarks.processes import pipeline, prepared, python, summary
from benchmarks.scripts import with_images


def mnist(rounds: int) -> Samples:
    """Measure three epochs of the MNIST convnet, then evaluation and export of their result by a second command.

    Raises:
        RuntimeError: where the test metrics of the two differ in any digit.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = with_images(Path(folder))
        trained: dict[str, float] = {}
        runs: list[str] = []

        def train() -> Figures:
            figures = pipeline(outputs, "experiment=mnist_cnn", f"data.dir={prepared('mnist')}")
            runs.append(summary(outputs)["folder"])
            trained.update(_tested(outputs))
            return figures

        def evaluate() -> Figures:
            figures = python("-m", "pipeline", "from=evaluate", f"run={runs[-1]}", f"outputs={outputs}")
            if _tested(outputs) != trained:
                raise RuntimeError(f"evaluated again: {_tested(outputs)}, before: {trained}")
            return figures

        return interleave({"train": train, "from=evaluate": evaluate}, rounds)


def _tested(outputs: Path) -> dict[str, float]:
    """Return the test metrics of the newest run without its times."""
    metrics = summary(outputs)["metrics"]
    times = ("seconds", "_per_second", "milliseconds", "_ms")
    return {name: value for name, value in metrics.items() if name.startswith("test/") and not name.endswith(times)}
