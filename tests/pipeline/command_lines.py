"""Answers to many command lines from one process: it imports once what a command imports, and forks for each."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """code: the exit code; out and err: what was printed; left: files in the directory of the command afterwards."""

    code: int
    out: str
    err: str
    seconds: float
    left: list[str]


def answers(
    *lines: Sequence[str],
    files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    program: str = "__main__.py",
    timeout: float = 240,
) -> list[Answer]:
    """Returns what the command answers to each of `lines`, each in a directory of its own.

    Args:
        files: from paths to texts, in each of the directories; they are not among `Answer.left`.
        environment: variables for all of them; program: the name by which they are called.
    """
    cases = [{"words": list(words), "files": dict(files or {}), "program": program} for words in lines]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, env=variables, timeout=timeout, check=True
    )
    return [Answer(**answer) for answer in json.loads(done.stdout)]


def _answer(case: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "here")
        place.mkdir()
        for name, text in case["files"].items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        out, err = Path(folder, "out"), Path(folder, "err")
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.chdir(place)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            _become(case)
        status = os.waitpid(pid, 0)[1]
        left = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
        return {
            "code": os.waitstatus_to_exitcode(status),
            "out": out.read_text(),
            "err": err.read_text(),
            "seconds": round(time.monotonic() - began, 2),
            "left": [name for name in left if name not in case["files"]],
        }


def _become(case: Mapping[str, Any]) -> None:
    """Runs the command in this process, and ends it."""
    from pipeline.__main__ import main

    sys.path[0] = str(Path.cwd())  # as `python -m` has it
    sys.argv = [f"/bin/{case['program']}", *case["words"]]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import pipeline.command_line.completion
    import pipeline.run.launch
    import pipeline.sweep.jobs  # noqa: F401

    print(json.dumps([_answer(case) for case in json.load(sys.stdin)]))
