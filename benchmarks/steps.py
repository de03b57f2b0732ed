"""`python -m benchmarks.steps [FILE]`: what settings of TensorFlow and of the allocator bring to a step on this CPU.

A cell is the processor time of bare compute's step as it is, divided by that under the setting: above 1 gains; the
median of the rounds, and their quartiles. Each setting has a process, and all take turns. In FILE, such as
docs/how-it-works/tried.md, the table replaces what is between its marks. Takes about ten minutes on two cores.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Figures, Spread, interleave, ratios
from benchmarks.page import markdown, put
from benchmarks.processes import ROOT
from benchmarks.report import processor

AS_IS = "nothing changed"
STEPS = {"cnn": 20, "resnet20": 4, "mlp": 300}
"""From each network to the steps of a round."""

KEPT = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296"
"""Has malloc keep what is freed, in parts of up to 32 MiB (its limit): using it again costs no page faults."""

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
"""Where Debian's packages libjemalloc2 and libtcmalloc-minimal4 put them; without them their rows are left out."""


@dataclass(frozen=True)
class Setting:
    """The environment of a process, options of TensorFlow's graph optimizer, and a precision."""

    environment: Mapping[str, str] = field(default_factory=dict)
    graph: Mapping[str, bool] = field(default_factory=dict)
    policy: str = "float32"


SETTINGS: dict[str, Setting] = {
    AS_IS: Setting(),
    "nothing changed, again (the noise)": Setting(),
    "without oneDNN": Setting({"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "oneDNN may use bfloat16 within float32": Setting({"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}),
    "one thread between operations": Setting({"TF_NUM_INTEROP_THREADS": "1"}),
    "layouts as they are": Setting(graph={"layout_optimizer": False}),
    "no fused operations": Setting(graph={"remapping": False}),
    "XLA": Setting({"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}),
    "freed memory is kept": Setting({"GLIBC_TUNABLES": KEPT}),
    "freed memory is kept, one arena": Setting({"GLIBC_TUNABLES": f"{KEPT}:glibc.malloc.arena_max=1"}),
    "huge pages": Setting({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    "jemalloc": Setting({"LD_PRELOAD": f"{LIBRARIES}/libjemalloc.so.2"}),
    "tcmalloc": Setting({"LD_PRELOAD": f"{LIBRARIES}/libtcmalloc_minimal.so.4"}),
    "precision=mixed_bfloat16": Setting(policy="mixed_bfloat16"),
}


def answer(setting: str, network: str) -> None:
    """Print a line when all is traced, then the processor seconds of a round for each line of standard input."""
    import tensorflow as tf

    from benchmarks.bare import Bare
    from benchmarks.models import built, device, images
    from stages.settings.model import CnnSettings, MlpSettings, ResnetSettings

    tf.config.optimizer.set_experimental_options(dict(SETTINGS[setting].graph))
    kind, side, channels = {
        "cnn": (CnnSettings, 28, 1),
        "resnet20": (ResnetSettings, 32, 3),
        "mlp": (MlpSettings, 8, 1),
    }[network]
    model = built(images(1000, side, channels), device(), kind(), SETTINGS[setting].policy)
    bare = Bare(model.network, 128, 1)
    bare.train(3)
    print("traced", flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        bare.train(STEPS[network])
        print(time.process_time() - began, flush=True)


def measured(network: str, rounds: int) -> dict[str, Spread]:
    """Return the gain of each setting; all processes take turns."""
    with ExitStack() as open_processes:
        processes = {}
        for name, setting in SETTINGS.items():
            if Path(setting.environment.get("LD_PRELOAD", __file__)).exists():
                command = [sys.executable, "-m", "benchmarks.steps", "--answer", name, network]
                process = subprocess.Popen(
                    command, cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **setting.environment},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                )  # fmt: skip
                processes[name] = open_processes.enter_context(process)
                process.stdout.readline()  # type: ignore[union-attr]

        def way(process: Any) -> Figures:
            process.stdin.write("\n")
            process.stdin.flush()
            return {"seconds": float(process.stdout.readline())}

        samples = interleave({name: partial(way, process) for name, process in processes.items()}, rounds, warm_up=1)
        for process in processes.values():
            process.stdin.close()  # type: ignore[union-attr]
    seconds = {name: figures["seconds"] for name, figures in samples.items()}
    return {name: Spread.of(ratios(seconds[AS_IS], values)) for name, values in seconds.items() if name != AS_IS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer(*given.answer)
        return
    gains = {network: measured(network, given.rounds) for network in STEPS}
    cell = lambda one: f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})"  # noqa: E731
    rows = [[name, *(cell(gains[network][name]) for network in STEPS)] for name in gains["mlp"]]
    table = f"{processor()}, {given.rounds} rounds\n\n{markdown(['setting', *STEPS], rows)}"
    print(table)
    if given.page:
        put(given.page, "steps", table)


if __name__ == "__main__":
    main()
