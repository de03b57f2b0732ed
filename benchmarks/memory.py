"""`python -m benchmarks.memory`: memory of training, evaluation and export, measured and estimated.

Each case has a fresh process. Measured is how much the resident set grew at its highest (Linux: VmHWM, which
/proc/self/clear_refs resets) over what it was when the stage began, its data and its model being there and what had
been freed being returned to the system (glibc's malloc_trim). Linux with glibc only.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASES = [
    ("cnn", 28, 64, "one_device"),
    ("cnn", 96, 64, "one_device"),
    ("cnn_photo", 160, 32, "one_device"),
    ("mobilenet_v2", 96, 16, "one_device"),
    ("mobilenet_v2", 160, 16, "one_device"),
    ("mobilenet_v2", 288, 8, "one_device"),
    ("mobilenet_v2", 160, 16, "mirrored"),
    ("efficientnet_v2_b0", 96, 16, "one_device"),
]
"""Network, side of the images, batch size, strategy."""

MEASURED = ("train", "evaluate", "export")


def measure(network: str, side: int, batch: int, strategy: str) -> dict[str, float]:
    """Returns the growth of the resident set in each stage of MEASURED, and the estimate, in MiB."""
    from pipeline.run.plan import make_plan
    from pipeline.run.runner import bind
    from stages.reporter import Silent
    from tests.pipeline.experiments import experiment

    with tempfile.TemporaryDirectory() as folder:
        given = [
            "data=synthetic", f"data.height={side}", f"data.width={side}", "data.examples=128", "data.val_fraction=0.5",
            "data.test_examples=64", f"model={network}", f"strategy={strategy}", f"train.batch_size={batch}",
            "train.epochs=1", "tracking=off",
        ]  # fmt: skip
        chosen = experiment(*given, outputs=Path(folder))
        results: dict[str, Any] = {}
        found: dict[str, float] = {}
        for stage in bind(make_plan(chosen), chosen):
            accepted = stage.function.__code__.co_varnames[: stage.function.__code__.co_argcount]
            handed = {"settings": stage.settings, "reporter": Silent(), "folder": Path(folder), "cache": Path(folder)}
            arguments = {name: results[name] for name in stage.planned.inputs}
            arguments |= {name: value for name, value in handed.items() if name in accepted}
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            before = _resident("VmRSS")
            result = stage.function(**arguments)
            if stage.planned.name in MEASURED:
                found[stage.planned.name] = _resident("VmHWM") - before
            if stage.planned.name == "train":
                found["estimate"] = result.record.params["memory_estimate_mib"]
            results[stage.planned.makes] = result
    return found


def _resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def main() -> None:
    if len(sys.argv) > 1:
        network, side, batch, strategy = sys.argv[1:]
        print(json.dumps(measure(network, int(side), int(batch), strategy)))
        return
    print("| network | side | batch | strategy | estimate | train | evaluate | export |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", *map(str, case)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {' | '.join(map(str, case))} | {done.stderr.strip().splitlines()[-1]} |")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        shown = [f"{found[name]:,.0f}" for name in ("estimate", *MEASURED)]
        print(f"| {' | '.join([*map(str, case), *shown])} |", flush=True)


if __name__ == "__main__":
    main()
