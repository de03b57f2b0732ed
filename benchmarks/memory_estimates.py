"""`python -m benchmarks.memory_estimates`: memory of training, evaluation and export, and what training estimates.

Each case has a fresh process; figures are the growth of the resident set over that at the stage's beginning, in MiB.
"""

from benchmarks.memory import stages
from benchmarks.page import markdown
from benchmarks.processes import in_fresh_process

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
    """Prints a table in Markdown, row by row."""
    print(markdown(["network", "side", "batch", "strategy", *COLUMNS], []))
    for case in CASES:
        found = in_fresh_process(stages, *case)
        print(f"| {' | '.join([*map(str, case), *(f'{found[name]:,.0f}' for name in COLUMNS)])} |", flush=True)


if __name__ == "__main__":
    main()
