"""Script `python -I standalone.py`: reloads exported files without this project, and measures how long they answer.

From each line of its input it reads an order in JSON: `loader`, `path` of the exported file, `images` (an .npy file),
`batch`, `calls`, and `answers`, the .npy file to write. To each it answers with a line of JSON: `milliseconds`, the
median time of one example, and `modules`, the top-level modules it has imported; or `error`. It ends with its input.
"""

import importlib
import json
import os
import runpy
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np


def measure(loader: str, path: str, images: str, answers: str, batch: int, calls: int) -> float:
    """Reload the file `path`, write its answers for the images, and return the milliseconds that one takes."""
    predict = runpy.run_path(loader)["load"](path)
    pixels = np.load(images)
    rows = [predict(pixels[begin : begin + batch]) for begin in range(0, len(pixels), batch)]
    np.save(answers, np.concatenate([np.asarray(row, np.float32) for row in rows]))
    predict(pixels[:1])
    times = []
    for call in range(calls):
        one = pixels[call % len(pixels)][None]
        began = time.perf_counter()
        predict(one)
        times.append(time.perf_counter() - began)
    return 1000 * float(np.median(times))


def main() -> None:
    """Answer orders until the input ends."""
    for name in ("pipeline", "stages"):
        sys.modules[name] = None  # type: ignore[assignment]  # cannot be imported, even where they are installed
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    _import_tensorflow()
    for line in sys.stdin:
        try:
            milliseconds = measure(**json.loads(line))
            modules = sorted({name.partition(".")[0] for name, module in sys.modules.items() if module})
            answer: dict[str, Any] = {"milliseconds": milliseconds, "modules": modules}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(answer), file=answers, flush=True)


def _import_tensorflow() -> None:
    """Import TensorFlow without Keras, which it imports for `tf.keras` and which takes half of the time.

    A loader that uses Keras imports it in its turn.
    """
    sys.modules["keras"] = None  # type: ignore[assignment]
    with suppress(ImportError):
        importlib.import_module("tensorflow")
    del sys.modules["keras"]


if __name__ == "__main__":
    main()
