"""`python -m benchmarks.launchers docs/how-to/clusters.md`: a table that compares the options of `cluster`.

Two workers train the MNIST convolutional network for one epoch of 3,000 images: with `cluster=local`, on a Slurm
cluster of three nodes that the benchmark starts, and on a Ray cluster that the command starts. The options take turns,
in several rounds. If Slurm or Ray is not installed, the table has no row for it.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks.measuring import Figures, interleave
from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, prepared, summary
from benchmarks.report import machine
from tests.engines.slurm.daemons import PATH, PROGRAMS, slurm

ROUNDS = 3
LOSSES = ("train/loss", "val/loss", "test/loss")
END_SECONDS = 10.0


def experiment(outputs: Path, *cluster: str) -> Figures:
    """Train with the settings `cluster`; return the losses, the seconds, and the number of processes still running."""
    first = outputs / "first_step"
    first.unlink(missing_ok=True)
    began = time.time()
    seconds = pipeline(
        outputs, "data=mnist", f"data.dir={prepared('mnist')}", "data.train_split='train[:5%]'",
        "data.test_split='test[:5%]'", "model=cnn", "train.epochs=1", "deterministic=true", "strategy=multi_worker",
        "strategy.workers=2", "pipeline.export=null", *cluster,
        f"train.callbacks=[{{_target_: benchmarks.callbacks.NoteFirstStep, path: {first}}}]",
    )["seconds"]  # fmt: skip
    metrics = summary(outputs)["metrics"]
    return {
        **{name: float(metrics[name]) for name in LOSSES},
        "start": float(first.read_text()) - began,
        "seconds": seconds,
        "left": float(len([*_left(outputs)])),
    }


def _left(outputs: Path) -> Iterator[int]:
    """Yield the ids of processes with `outputs` in their command line that do not end within END_SECONDS."""
    until = time.monotonic() + END_SECONDS
    while (pids := _processes_with(str(outputs))) and time.monotonic() < until:
        time.sleep(0.2)
    yield from pids


def _processes_with(text: str) -> list[int]:
    """Return the ids of all processes with `text` in their command line, except this process and its parents."""
    own = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    others = [process for process in psutil.process_iter(["cmdline"]) if process.pid not in own]
    return [process.pid for process in others if text in " ".join(process.info["cmdline"] or ())]


def table(samples: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return the medians in Markdown, and the largest difference between a loss and the loss of `cluster=local`."""
    rows = []
    local = samples["local"]
    for name, figures in samples.items():
        pairs = [(figures[loss], local[loss][0]) for loss in LOSSES]
        difference = max(abs(value - expected) for values, expected in pairs for value in values)
        start, seconds = (f"{statistics.median(figures[figure]):.1f}" for figure in ("start", "seconds"))
        rows.append([f"`cluster={name}`", start, seconds, f"{difference:.2g}", f"{max(figures['left']):.0f}"])
    columns = [
        "launcher", "seconds to the first step", "seconds in all", "largest difference of a loss", "processes left",
    ]  # fmt: skip
    return f"{markdown(columns, rows)}\n\nMedians of {ROUNDS} rounds; {machine()}"


def main() -> None:
    """Print the table, and write it to the page that the command line names, if it names one."""
    with ExitStack() as stack:
        outputs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options: dict[str, Callable[[], Figures]] = {"local": partial(experiment, outputs)}
        if all(shutil.which(program, path=PATH) for program in PROGRAMS):
            stack.enter_context(slurm())
            options["slurm"] = partial(experiment, outputs, "cluster=slurm", "cluster.nodes=2")
        if find_spec("ray"):
            options["ray"] = partial(experiment, outputs, "cluster=ray")
        text = table(interleave(options, ROUNDS, warm_up=1))
    if sys.argv[1:]:
        put(Path(sys.argv[1]), "launchers", text)
    print(text)


if __name__ == "__main__":
    main()
