"""Script `python -I standalone.py <runtimes>`: reloads exported files without this project, and measures them.

It reads an order in JSON from each line of its input: `loader`, `path` of the exported file, `images` (an .npy file),
`batch`, `calls`, and `answers`, the .npy file to write. To each it writes a line of JSON to its output: `milliseconds`,
the median time of one example, and `modules`, the top-level modules it has imported; or `error`. It ends with its
input.
"""

import importlib
import json
import os
import runpy
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np


def measure(loader: str, path: str, images: str, answers: str, batch: int, calls: int) -> float:
    """Reloads the file `path`, writes its answers for the images, and returns the milliseconds that one takes."""
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


def _read(orders: SimpleQueue[Any]) -> None:
    """Puts every line of the input into `orders`. It ends with the process that gives orders, and so does this one."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Answers orders until the input ends."""
    for name in ("pipeline", "stages"):
        sys.modules[name] = None  # type: ignore[assignment]  # cannot be imported, even where they are installed
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    orders: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    for runtime in sys.argv[1].split(","):
        with suppress(ImportError):
            importlib.import_module(runtime)
            break
    while True:
        order = orders.get()
        try:
            milliseconds = measure(**order)
            modules = sorted({name.partition(".")[0] for name, module in sys.modules.items() if module})
            answer: dict[str, Any] = {"milliseconds": milliseconds, "modules": modules}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
