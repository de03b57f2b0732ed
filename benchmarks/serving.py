"""`python -m benchmarks.serving [PAGE]`: a served model under load: requests a second, latency, memory, errors.

A model of the digits is trained and served in processes of their own; `--clients` threads send one PNG after another,
each over a connection that it keeps.
"""

import argparse
import http.client
import io
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, summary, wait_for


@dataclass
class Load:
    """Measurements of the clients: seconds of each request, and how many were not answered by 200."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0


def send(port: int, body: bytes, until: float, load: Load) -> None:
    """Send one request after another until the time `until`, of `time.monotonic()`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while time.monotonic() < until:
        began = time.perf_counter()
        connection.request("POST", "/images", body, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        load.seconds.append(time.perf_counter() - began)
        load.errors += answer.status != 200
    connection.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser("python -m benchmarks.serving", description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, help="a page that takes the table between its marks")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    file = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, "PNG")
    with tempfile.TemporaryDirectory() as scratch:
        outputs = Path(scratch)
        pipeline(outputs, "train.epochs=3")
        command = [sys.executable, "-m", "pipeline", "serve", summary(outputs)["folder"], f"--outputs={outputs}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                [port] = map(int, re.findall(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline()))
                wait_for(port, "/ping")
                send(port, file.getvalue(), time.monotonic() + 2, Load())  # traces and warms up
                process = psutil.Process(server.pid)
                before = process.memory_info().rss
                load, until = Load(), time.monotonic() + options.seconds
                clients = [
                    threading.Thread(target=send, args=(port, file.getvalue(), until, load))
                    for _ in range(options.clients)
                ]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                after = process.memory_info().rss
            finally:
                server.terminate()
    p50, p99 = np.percentile(load.seconds, [50, 99]) * 1000
    rows = {
        "clients, seconds": f"{options.clients}, {options.seconds:.0f}",
        "requests per second": f"{len(load.seconds) / options.seconds:,.0f}",
        "latency, p50 and p99": f"{p50:.1f} ms, {p99:.1f} ms",
        "errors": f"{load.errors} of {len(load.seconds):,}",
        "memory of the server before and after": f"{before / 2**20:,.0f} MiB, {after / 2**20:,.0f} MiB",
    }
    table = markdown(["load", "measured"], rows.items())
    print(table)
    if options.page is not None:
        put(options.page, "serving", table)


if __name__ == "__main__":
    main()
