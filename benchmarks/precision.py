"""`python -m benchmarks.precision [PAGE]`: mixed_bfloat16 against float32, in the pipeline's step and in bare compute.

The bare step is the same network, loss and optimizer on one batch that stays where it is: no input, no metrics, no
progress. All ways take turns in one process; figures are medians of the rounds with the least and the most.
TensorFlow's profiler then says which operations of the bare step the gain comes from.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.system import environment

environment.prepare()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: E402

from benchmarks.cases import step_of  # noqa: E402
from benchmarks.page import put  # noqa: E402
from pipeline.system.machine import cpu_flags  # noqa: E402
from stages.load.synthetic import synthetic  # noqa: E402
from stages.model import model  # noqa: E402
from stages.normalize import normalize  # noqa: E402
from stages.results import Dataset, Model  # noqa: E402
from stages.settings.data import SyntheticSettings  # noqa: E402
from stages.settings.images import NormalizeSettings  # noqa: E402
from stages.settings.model import CnnPhotoSettings, ModelSettings, PrecisionSettings, ResnetSettings  # noqa: E402
from stages.settings.optimizer import AdamSettings, ScheduleSettings  # noqa: E402
from stages.settings.strategy import OneDeviceSettings  # noqa: E402
from stages.settings.train import TrainSettings  # noqa: E402
from stages.strategy import strategy  # noqa: E402
from stages.training.loop import Loop  # noqa: E402

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

WHERE = strategy(OneDeviceSettings(deterministic=False, device="/cpu:0"))


def built(dataset: Dataset, network: object, policy: str) -> Model:
    precision = PrecisionSettings(policy=policy)
    return model(dataset, WHERE, ModelSettings(network=network, precision=precision, seed=1))


def bare(dataset: Dataset, network: object, policy: str, batch: int) -> Callable[[], None]:
    """Returns a function that takes STEPS steps on one batch."""
    core = built(dataset, network, policy).network
    with WHERE.distribution.scope():
        optimizer = keras.optimizers.Adam()
        optimizer.build(core.trainable_variables)
    images = tf.cast(dataset.train.images[:batch], tf.float32)
    labels = tf.constant(dataset.train.labels[:batch])
    variables = [variable.value for variable in core.trainable_variables]

    def steps() -> None:
        for _ in tf.range(STEPS):
            with tf.GradientTape() as tape:
                outputs = core(images, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
            optimizer.apply(tape.gradient(loss, variables), core.trainable_variables)

    @tf.function
    def run() -> None:
        WHERE.distribution.run(steps)

    return run


def pipeline(dataset: Dataset, network: object, policy: str, batch: int) -> Callable[[], None]:
    """Returns a function that takes STEPS steps of the training loop, with input and metrics."""
    settings = TrainSettings(
        epochs=10_000,
        batch_size=batch,
        steps_per_call=STEPS,
        optimizer=AdamSettings(),
        schedule=ScheduleSettings(),
        seed=1,
    )
    with WHERE.distribution.scope():
        optimizer = keras.optimizers.Adam()
    engine = Loop(
        WHERE, step_of(WHERE, built(dataset, network, policy), dataset, optimizer, settings), dataset, settings
    )
    done = 0

    def run() -> None:
        nonlocal done
        engine.run(done, STEPS)
        done += STEPS

    return run


Way = tuple[str, str]
"""`bare` or `pipeline`, and the policy."""


def measured(ways: Mapping[Way, Callable[[], None]]) -> dict[Way, list[float]]:
    """Returns the seconds of a step in each way, round by round, without the first one, which traces."""
    seconds: dict[Way, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, run in ways.items():
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append((time.perf_counter() - began) / STEPS)
    return seconds


def by_kind(run: Callable[[], None]) -> dict[str, float]:
    """Returns the milliseconds of a step that each kind of operation takes, by TensorFlow's profiler."""
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
    """Yields the type and the picoseconds of every operation in a trace, whose name is `<node>:<type>`."""
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
    """Measures a network, and returns its tables in Markdown."""
    given = SyntheticSettings(examples=20 * batch, height=size, width=size, channels=3, split_seed=1)
    dataset = normalize(synthetic(given), NormalizeSettings())
    ways: dict[Way, Callable[[], None]] = {
        (way.__name__, policy): way(dataset, network, policy, batch) for policy in POLICIES for way in (bare, pipeline)
    }
    seconds = measured(ways)
    rows = ["| step | float32, ms | mixed_bfloat16, ms | gain |", "|---|---|---|---|"]
    gains: dict[str, float] = {}
    for way in ("bare", "pipeline"):
        slow, fast = seconds[way, "float32"], seconds[way, "mixed_bfloat16"]
        ratios = [a / b for a, b in zip(slow, fast, strict=True)]
        gains[way] = statistics.median(ratios)
        rows.append(
            f"| {way} | {_ms(slow)} | {_ms(fast)} | {gains[way]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    of_float32, of_bfloat16 = (
        statistics.median(a / b for a, b in zip(seconds["bare", policy], seconds["pipeline", policy], strict=True))
        for policy in POLICIES
    )
    kinds = {policy: by_kind(ways["bare", policy]) for policy in POLICIES}
    return "\n".join(
        [
            *rows,
            "",
            f"The pipeline reaches {of_float32:.2f} of the bare speed in float32, {of_bfloat16:.2f} in mixed_bfloat16, "
            f"and {gains['pipeline'] / gains['bare']:.2f} of the bare gain.",
            "",
            "| operations of the bare step | float32, ms | mixed_bfloat16, ms |",
            "|---|---|---|",
            *(f"| {kind} | {' | '.join(f'{kinds[policy][kind]:.1f}' for policy in POLICIES)} |" for kind in KINDS),
            f"| others | {' | '.join(f'{kinds[policy][OTHERS]:.1f}' for policy in POLICIES)} |",
        ]
    )


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f} ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f})"


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return f"{len(names)} cores of {names[0]}" if names else platform.processor()


def main() -> None:
    """Prints the tables, and writes them into a page."""
    parser = argparse.ArgumentParser("python -m benchmarks.precision", description=__doc__)
    parser.add_argument(
        "page", nargs="?", type=Path, help="a page that takes the tables between the marks of a network"
    )
    parser.add_argument("--network", choices=NETWORKS, help="one of them; else all, one after another")
    options = parser.parse_args()
    flags = ", ".join(sorted(cpu_flags() & {"avx512_bf16", "amx_bf16"})) or "no instructions for bfloat16"
    for name in [options.network] if options.network else NETWORKS:
        network, size, batch = NETWORKS[name]
        title = (
            f"`{name}`, {size}×{size} pixels, batch {batch}; {_processor()} with {flags}; TensorFlow {tf.__version__}; "
        )
        title += f"medians of {ROUNDS} rounds of {STEPS} steps (least to most):"
        text = f"{title}\n\n{section(network, size, batch)}"
        print(text, end="\n\n", flush=True)
        if options.page is not None:
            put(options.page, f"precision {name}", text)


if __name__ == "__main__":
    main()
