"""`python -m benchmarks.memory_estimates`: memory of training, evaluation and export, and what training estimates.

Each case has a fresh process; figures are the growth of the resident set over that at the stage's beginning, in MiB.
"""

import json
import subprocess
import sys

from benchmarks.memory import stages

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

COLUMNS = ("estimate", "train growth", "evaluate growth", "export growth")


def main() -> None:
    if len(sys.argv) > 1:
        network, side, batch, strategy = sys.argv[1:]
        print(json.dumps(stages(network, int(side), int(batch), strategy)))
        return
    print(f"| network | side | batch | strategy | {' | '.join(COLUMNS)} |")
    print("|---" * (4 + len(COLUMNS)) + "|")
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory_estimates", *map(str, case)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"| {' | '.join([*map(str, case), *(f'{found[name]:,.0f}' for name in COLUMNS)])} |", flush=True)


if __name__ == "__main__":
    main()
