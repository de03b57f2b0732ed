"""`python -m benchmarks.precision [PAGE]`: mixed_bfloat16 against float32, in the pipeline's step and in bare compute.

The bare step is the same network, loss and optimizer on batches that stay where they are: no input, no metrics, no
progress. All ways take turns in one process; figures are medians of the rounds with the least and the most.
TensorFlow's profiler then says which operations of the bare step the gain comes from.
"""

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.bare import Bare
from benchmarks.measuring import interleave, ratios, timed
from benchmarks.models import built, device, images, trained_by_adam, training_loop
from benchmarks.page import markdown, put
from benchmarks.report import processor
from stages.results import Dataset
from stages.settings.model import CnnPhotoSettings, ResnetSettings

POLICIES = ("float32", "mixed_bfloat16")
NETWORKS: Mapping[str, tuple[object, int, int]] = {
    "resnet20": (ResnetSettings(), 32, 64),
    "cnn_photo": (CnnPhotoSettings(), 96, 32),
}
"""Their settings, the size of an image and the batch."""

OTHERS = "others"
STEPS, ROUNDS = 4, 5
KINDS = {
    "convolutions, backward": ("Conv2DBackprop",),
    "convolutions, forward": ("Conv2D",),
    "BatchNorm": ("FusedBatchNorm",),
    "casts": ("Cast",),
    "matrix products": ("MatMul",),
    "ReLU, pooling, sums": ("Relu", "Pool", "AddV2", "AddN", "BiasAdd", "Mean", "Sum"),
}
"""From kinds of operations to parts of their types' names; the first that fits counts."""

CONTAINERS = ("While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall")
"""Operations that consist of others."""

WHERE = device()


def bare(dataset: Dataset, network: object, policy: str, batch: int) -> Callable[[], object]:
    """Return a function that takes STEPS steps on batches that stay where they are."""
    return partial(Bare(built(dataset, WHERE, network, policy).network, batch, batch).train, STEPS)


def pipeline(dataset: Dataset, network: object, policy: str, batch: int) -> Callable[[], object]:
    """Return a function that takes STEPS steps of the training loop, with input and metrics."""
    engine = training_loop(dataset, WHERE, built(dataset, WHERE, network, policy), trained_by_adam(batch, STEPS))
    first_steps = itertools.count(0, STEPS)
    return lambda: engine.run(next(first_steps), STEPS)


def by_kind(run: Callable[[], object]) -> dict[str, float]:
    """Return the milliseconds of a step that each kind of operation takes, by TensorFlow's profiler."""
    totals = dict.fromkeys([*KINDS, OTHERS], 0.0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        for path in Path(folder).rglob("*.xplane.pb"):
            for name, picoseconds in _operations(path):
                totals[_kind(name)] += picoseconds / 1e9 / STEPS
    return totals


def _operations(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the type and the picoseconds of every operation in a trace, whose name is `<node>:<type>`."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                node, _, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
                is_operation = node and not node.endswith(":") and kind.isidentifier()
                if is_operation and kind not in CONTAINERS:
                    yield kind, event.duration_ps


def _kind(operation: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in operation for part in parts)), OTHERS)


def section(network: object, size: int, batch: int) -> str:
    """Measure a network, and return its tables in Markdown."""
    dataset = images(20 * batch, size)
    ways = {
        f"{way.__name__} {policy}": way(dataset, network, policy, batch)
        for policy in POLICIES
        for way in (bare, pipeline)
    }
    samples = interleave({name: timed(way) for name, way in ways.items()}, ROUNDS, warm_up=1)  # the first round traces
    seconds = {name: [value / STEPS for value in figures["seconds"]] for name, figures in samples.items()}
    gains = {way: ratios(seconds[f"{way} float32"], seconds[f"{way} mixed_bfloat16"]) for way in ("bare", "pipeline")}
    steps = [
        [way, _ms(seconds[f"{way} float32"]), _ms(seconds[f"{way} mixed_bfloat16"]), _spread(gain, 2)]
        for way, gain in gains.items()
    ]
    reached = [statistics.median(ratios(seconds[f"bare {name}"], seconds[f"pipeline {name}"])) for name in POLICIES]
    of_gain = statistics.median(gains["pipeline"]) / statistics.median(gains["bare"])
    milliseconds = [by_kind(ways[f"bare {policy}"]) for policy in POLICIES]
    kinds = [[kind, *(f"{each[kind]:.1f}" for each in milliseconds)] for kind in (*KINDS, OTHERS)]
    return "\n\n".join(
        [
            markdown(["step", "float32, ms", "mixed_bfloat16, ms", "gain"], steps),
            f"The pipeline reaches {reached[0]:.2f} of the bare speed in float32, {reached[1]:.2f} in mixed_bfloat16, "
            f"and {of_gain:.2f} of the bare gain.",
            markdown(["operations of the bare step", "float32, ms", "mixed_bfloat16, ms"], kinds),
        ]
    )


def _ms(seconds: Sequence[float]) -> str:
    return _spread([1e3 * second for second in seconds], 1)


def _spread(values: Sequence[float], digits: int) -> str:
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def main() -> None:
    """Print the tables, and write them into a page."""
    parser = argparse.ArgumentParser("python -m benchmarks.precision", description=__doc__)
    parser.add_argument(
        "page", nargs="?", type=Path, help="a page that takes the tables between the marks of a network"
    )
    parser.add_argument("--network", choices=NETWORKS, help="one of them; else all, one after another")
    options = parser.parse_args()
    known = {"avx512_bf16", "amx_bf16"} & {*Path("/proc/cpuinfo").read_text().split()}
    flags = ", ".join(sorted(known)) or "no instructions for bfloat16"
    for name in [options.network] if options.network else NETWORKS:
        network, size, batch = NETWORKS[name]
        title = (
            f"`{name}`, {size}×{size} pixels, batch {batch}; {processor()} with {flags}; TensorFlow {tf.__version__}; "
        )
        title += f"medians of {ROUNDS} rounds of {STEPS} steps (least to most):"
        text = f"{title}\n\n{section(network, size, batch)}"
        print(text, end="\n\n", flush=True)
        if options.page is not None:
            put(options.page, f"precision {name}", text)


if __name__ == "__main__":
    main()
