"""`python -m benchmarks.one MODULE:FUNCTION ROUNDS FILE`: makes one measurement in a process of its own, into FILE."""

import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.measuring import UnavailableError

if __name__ == "__main__":
    name, rounds, path = sys.argv[1:]
    module, _, function = name.partition(":")
    try:
        samples = getattr(import_module(f"benchmarks.{module}"), function)(int(rounds))
        Path(path).write_text(json.dumps({"samples": samples}))
    except UnavailableError as error:
        Path(path).write_text(json.dumps({"why_not": str(error)}))
