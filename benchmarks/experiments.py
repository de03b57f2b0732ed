"""Runs the reference experiments whose data is available, and compares each with the range in its file's header.

    python -m benchmarks.experiments [--data ../shared/data] [names …]

`--data` holds `tfds/` with prepared sets, `image_folder/` with folders of images, `weights/` with files of weights.
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processes import pipeline, summary
from pipeline.paths import CONF

EXPECT = re.compile(r"^# Expect: (\S+) ([\d.]+) to ([\d.]+)$", flags=re.MULTILINE)


def main() -> int:
    """Return 1 where a result is not what is to expect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as outputs:
        for path in sorted((CONF / "experiment").glob("*.yaml")):
            expected = EXPECT.search(path.read_text())
            if expected is None or (given.names and path.stem not in given.names):
                continue
            where = _data(path.read_text(), given.data.resolve())
            if where is None:
                print(f"{path.stem:22} its data is not at hand", flush=True)
                continue
            metric, low, high = expected[1], float(expected[2]), float(expected[3])
            began = time.monotonic()
            value = _result(path.stem, where, Path(outputs), metric)
            is_right = value is not None and low <= value <= high
            failed |= not is_right
            shown = "failed" if value is None else f"{value:.4f}"
            verdict = "as expected" if is_right else "NOT AS EXPECTED"
            seconds = time.monotonic() - began
            print(f"{path.stem:22} {metric} {shown} ({low:g} to {high:g}) in {seconds:.0f} s: {verdict}", flush=True)
    return int(failed)


def _data(text: str, data: Path) -> list[str] | None:
    """Return what to type for an experiment to find its data, or None where it is not there."""
    [source] = re.findall(r"override /data: (\w+)", text)
    folder = data / "image_folder" / "cats_dogs" if source == "image_folder" else data / "tfds" / source
    if not folder.is_dir():
        return None
    typed = [f"data.dir={folder if source == 'image_folder' else data / 'tfds'}"]
    if "weights: imagenet" in text:
        files = sorted((data / "weights").glob("*.weights.h5"))
        if not files:
            return None
        typed.append(f"model.weights={files[0]}")
    return typed


def _result(name: str, typed: list[str], outputs: Path, metric: str) -> float | None:
    try:
        pipeline(outputs, f"experiment={name}", *typed)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return None
    value = summary(outputs)["metrics"].get(metric)
    return None if value is None else float(value)


if __name__ == "__main__":
    sys.exit(main())
