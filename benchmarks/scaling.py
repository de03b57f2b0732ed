"""`python -m benchmarks.scaling [PAGE] [--only PART…]`: what training costs on up to 1,024 replicas.

Parts, each a table between marks of its own in PAGE (docs/how-it-works/scaling.md): `efficiency` by the model of
`benchmarks/scaling_model.py`, `processes`: the model against processes on this machine, `overlap` of reductions with
the backward pass (hosts as network namespaces, as root), `bytes` of networks' gradients, `checkpoints`, `order` of
examples.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.clusters import run_workers
from benchmarks.memory import resident
from benchmarks.page import markdown, put
from benchmarks.processes import in_fresh_process
from benchmarks.scaling_model import Link, efficiency, reduction_seconds, sent_by_each, step_seconds
from stages.tasks.classification import classification
from tests.pipeline.launch.hosts import linked_hosts

LINKS = {
    "10 Gbit/s, 50 µs": Link.gigabits(10, 50),
    "25 Gbit/s, 20 µs": Link.gigabits(25, 20),
    "100 Gbit/s, 5 µs": Link.gigabits(100, 5),
}
REPLICAS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STEPS_OF_COMPUTE = (0.01, 0.1, 1.0)
"""Seconds that a replica computes in a step."""

MIB = 2**20


def efficiencies() -> str:
    """Return the table `efficiency`, for gradients of 14, 25 and 210 MiB."""
    rows = []
    for size in (14, 25, 210):
        for compute in STEPS_OF_COMPUTE:
            for name, link in LINKS.items():
                cells = [
                    f"{efficiency(compute, size * MIB, count, link, _packs(size * MIB)):.2f}" for count in REPLICAS
                ]
                rows.append([f"{size} MiB, {compute:g} s", name, *cells])
    return markdown(["gradients, compute", "link", *(f"{count:,}" for count in REPLICAS)], rows)


def processes() -> str:
    """Return the table `processes`: what steps of 1, 2 and 4 processes of a core each take, and what the model says.

    Its inputs are the step of one process alone, and the link as two of them have it: the latency from reductions of
    one number, the bandwidth from those of as many bytes as the gradients have.
    """
    measured = {count: _workers(count) for count in (1, 2, 4)}
    size, pair = measured[1]["bytes"], measured[2]
    link = Link(sent_by_each(size, 2) / (pair["many"] - pair["one"]), pair["one"] / 2)
    rows = []
    for count, found in measured.items():
        computed = step_seconds(measured[1]["step"], size, count, link, _packs(size), cores=os.cpu_count())
        seconds = [found["step"], computed, found["many"], reduction_seconds(size, count, link)]
        rows.append([str(count), *(f"{1e3 * second:.1f}" for second in seconds), f"{computed / found['step']:.2f}"])
    heads = ["processes", "step, ms", "by the model, ms", "reduction, ms", "by the model, ms", "model over measured"]
    link_found = f"Link of two processes: {link.bandwidth / MIB:,.0f} MiB/s, {1e6 * link.latency:,.0f} µs."
    return f"{markdown(heads, rows)}\n\nGradients: {size / MIB:.2f} MiB. {link_found}"


def _workers(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.json"
        codes, printed = run_workers(count, "benchmarks.scaling_worker", str(path))
        if any(codes):
            raise RuntimeError(printed[-3000:])
        measured: dict[str, float] = json.loads(path.read_text())
        return measured


def _packs(size: float) -> int:
    from stages.strategy import PACK_BYTES

    return max(1, int(size) // PACK_BYTES)


def overlap() -> str:
    """Return the table `overlap`: steps on hosts of one core each, with gradients summed at once and in packs."""
    alone = _on_hosts(1, None)["step"]
    cores = os.cpu_count() or 1
    rows = []
    for count, rate in ((2, "1gbit"), (2, "10gbit"), (4, "10gbit")):
        compute = alone * max(1.0, count / cores)
        seconds = [compute, _on_hosts(count, rate, "--at-once")["step"], _on_hosts(count, rate)["step"]]
        cells = [f"{1e3 * second:.0f}" for second in seconds]
        rows.append([f"{count}, {rate}", *cells, *(f"{compute / second:.2f}" for second in seconds[1:])])
    heads = ["hosts, link", "computing, ms", "at once, ms", "in packs, ms", "efficiency at once", "in packs"]
    return markdown(heads, rows)


def _on_hosts(count: int, rate: str | None, *options: str) -> dict[str, float]:
    """Return what workers on `count` hosts with links of `rate` measure, for a network of 5 million parameters."""
    names = [f"host{index}" for index in range(count)]
    with tempfile.TemporaryDirectory() as folder, linked_hosts(*names, rate=rate) as hosts:
        path = Path(folder) / "measured.json"
        members = []
        for index, host in enumerate(hosts):
            task = {
                "cluster": {"worker": [f"{name}:2222" for name in names]},
                "task": {"type": "worker", "index": index},
            }
            members.append(
                host.start(
                    *(str(path), "--batch", "512", *options, "--widths", *["512"] * 20),
                    module="benchmarks.scaling_worker",
                    core=index % (os.cpu_count() or 1),
                    log=Path(folder) / f"{index}.log",
                    environment={"TF_CONFIG": json.dumps(task), "CUDA_VISIBLE_DEVICES": "-1"},
                )
            )
        try:
            codes = [member.wait(300) for member in members]
        finally:
            for member in members:
                member.kill()
        if any(codes):
            raise RuntimeError((Path(folder) / "0.log").read_text()[-3000:])
        measured: dict[str, float] = json.loads(path.read_text())
        return measured


def bytes_of_networks() -> str:
    """Return the table `bytes`: gradients by network, and what a replica sends of them in a step."""
    from benchmarks.models import built, device, images
    from stages.settings.model import ApplicationSettings, CnnPhotoSettings, CnnSettings, MlpSettings, ResnetSettings

    where = device()
    networks = {
        "mlp": (MlpSettings(), 28, 1, 10),
        "cnn": (CnnSettings(), 28, 1, 10),
        "resnet20": (ResnetSettings(), 32, 3, 10),
        "cnn_photo": (CnnPhotoSettings(), 160, 3, 5),
        "mobilenet_v2": (ApplicationSettings(name="MobileNetV2"), 224, 3, 1000),
        "efficientnet_v2_b0": (ApplicationSettings(name="EfficientNetV2B0"), 224, 3, 1000),
        "application, ResNet50": (ApplicationSettings(name="ResNet50"), 224, 3, 1000),
        "efficientnet_v2_m": (ApplicationSettings(name="EfficientNetV2M"), 224, 3, 1000),
    }
    rows = []
    for name, (network, side, channels, classes) in networks.items():
        dataset = replace(images(40, side, channels, 2), task=classification(tuple(map(str, range(classes)))))
        variables = built(dataset, where, network).network.trainable_variables
        size = 4 * sum(int(np.prod(variable.shape)) for variable in variables)
        sent = [f"{sent_by_each(size, count) / MIB:.1f}" for count in (2, 8, 1024)]
        rows.append([name, f"{side}×{side}×{channels}", f"{size // 4:,}", f"{size / MIB:.1f}", *sent])
    heads = ["network", "images", "trainable parameters", "MiB", "sent by each of 2, MiB", "of 8", "of 1,024"]
    return markdown(heads, rows)


def checkpoints() -> str:
    """Return the table `checkpoints`: written by the chief alone, and read by it for all."""
    from stages.checkpoints.files import Checkpoint, read, to_bytes, write

    rows = []
    for mib in (16, 64, 256):
        arrays = {str(index): np.ones(MIB // 4, np.float32) for index in range(mib)}
        checkpoint = Checkpoint({"step": 1}, arrays)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step-1.npz"
            seconds = [_seconds(write, checkpoint, path), _seconds(read, path), _seconds(to_bytes, checkpoint)]
        sent = [reduction_seconds(mib * MIB, count, LINKS["10 Gbit/s, 50 µs"]) for count in (256, 1024)]
        rows.append([f"{mib}", *(f"{second:.2f}" for second in [*seconds, *sent])])
    heads = ["MiB", "written, s", "read, s", "packed, s", "to 256 workers at 10 Gbit/s, s", "to 1,024, s"]
    return markdown(heads, rows)


def orders() -> str:
    """Return the table `order`: what the permutation of an epoch takes, in a process of its own for each size."""
    rows = []
    for examples in (10**6, 10**7, 10**8):
        seconds, peak = in_fresh_process(_order, examples)
        rows.append([f"{examples:,}", f"{seconds:.1f}", f"{peak / MIB:,.0f}", f"{peak / examples:.0f}"])
    return markdown(["examples", "seconds", "memory, MiB", "bytes per example"], rows)


def _order(examples: int) -> tuple[float, float]:
    """Return the seconds of an epoch's order, and by how many bytes it raises the peak of the resident set."""
    import tensorflow as tf

    from stages.data.batches import order

    epoch = tf.constant(1, tf.int64)
    order(10, 1, epoch)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    seconds = _seconds(order, examples, 1, epoch)
    return seconds, MIB * (resident("VmHWM") - before)


def _seconds(function: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


PARTS: dict[str, Callable[[], str]] = {
    "efficiency": efficiencies,
    "processes": processes,
    "overlap": overlap,
    "bytes": bytes_of_networks,
    "checkpoints": checkpoints,
    "order": orders,
}


def main() -> None:
    """Print the tables, and put them into the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, help="a page that takes the tables between its marks")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    for name in options.only:
        made = PARTS[name]()
        print(f"{name}\n\n{made}\n", flush=True)
        if options.page is not None:
            put(options.page, name, made)


if __name__ == "__main__":
    main()
