"""`python -m benchmarks.engines docs/how-to/clusters.md`: one experiment by every engine of this machine, as a table.

Two workers train the MNIST convnet for an epoch of 3,000 images, by `cluster=local`, on a real Slurm of three nodes
that the benchmark starts, and on a Ray of the command's own; in turns, in several rounds. An engine that is not
installed has no row.
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


def experiment(outputs: Path, *engine: str) -> Figures:
    """Returns the losses of a run, the seconds to its first step and in all, and how many processes it has left."""
    first = outputs / "first_step"
    first.unlink(missing_ok=True)
    began = time.time()
    seconds = pipeline(
        outputs, "data=mnist", f"data.dir={prepared('mnist')}", "data.train_split='train[:5%]'",
        "data.test_split='test[:5%]'", "model=cnn", "train.epochs=1", "deterministic=true", "strategy=multi_worker",
        "strategy.workers=2", "pipeline.export=null", *engine,
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
    """Yields the processes that still know of `outputs` seconds after the command has ended."""
    until = time.monotonic() + END_SECONDS
    while (pids := _that_name(str(outputs))) and time.monotonic() < until:
        time.sleep(0.2)
    yield from pids


def _that_name(text: str) -> list[int]:
    own = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    found = [process for process in psutil.process_iter(["cmdline"]) if process.pid not in own]
    return [process.pid for process in found if text in " ".join(process.info["cmdline"] or ())]


def table(samples: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Returns the medians as Markdown, and the largest difference of a loss from that of `cluster=local`."""
    rows = []
    local = samples["local"]
    for name, figures in samples.items():
        pairs = [(figures[loss], local[loss][0]) for loss in LOSSES]
        difference = max(abs(value - expected) for values, expected in pairs for value in values)
        start, seconds = (f"{statistics.median(figures[figure]):.1f}" for figure in ("start", "seconds"))
        rows.append([f"`cluster={name}`", start, seconds, f"{difference:.2g}", f"{max(figures['left']):.0f}"])
    columns = [
        "engine", "seconds to the first step", "seconds in all", "largest difference of a loss", "processes left",
    ]  # fmt: skip
    return f"{markdown(columns, rows)}\n\nMedians of {ROUNDS} rounds; {machine()}"


def main() -> None:
    """Prints the table, or writes it into the page that the command line names."""
    with ExitStack() as stack:
        outputs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways: dict[str, Callable[[], Figures]] = {"local": partial(experiment, outputs)}
        if all(shutil.which(program, path=PATH) for program in PROGRAMS):
            stack.enter_context(slurm())
            ways["slurm"] = partial(experiment, outputs, "cluster=slurm", "cluster.nodes=2")
        if find_spec("ray"):
            ways["ray"] = partial(experiment, outputs, "cluster=ray")
        text = table(interleave(ways, ROUNDS, warm_up=1))
    if sys.argv[1:]:
        put(Path(sys.argv[1]), "engines", text)
    print(text)


if __name__ == "__main__":
    main()
