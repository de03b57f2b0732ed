"""Environment variables of the process, and its standard error and garbage collector around slow imports."""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path

from stages.errors import UserError
from stages.settings.places import regular_file, resolved

_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors reach Python as exceptions; the rest is noise
    "OMP_WAIT_POLICY": "PASSIVE",  # scikit-learn's threads would spin while other processes want their core
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the summary has the address, without a password
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # 13 s for a server that is down; MLflow's own 7 take 4 minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
"""Read by TensorFlow's first operation in a process."""


def thread_variables(count: int, deterministic: bool) -> dict[str, str]:
    """Return the variables of a process that computes with `count` threads, without those that the user has set.

    A deterministic experiment has as many threads as anywhere: how TensorFlow divides a sum among them decides its last
    bits.
    """
    return {} if deterministic else {name: str(count) for name in THREADS if name not in os.environ}


def prepare() -> None:
    """Set defaults of unset variables. Keras must run on TensorFlow, whatever the shell sets."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        Path.home()
    except RuntimeError:  # neither HOME nor an entry in the list of users: MLflow could not be imported
        os.environ["HOME"] = "/"  # as Docker has it for a user that it does not know


_KERAS_FILE: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "floatx": (lambda value: value in ("float16", "float32", "float64"), "float16, float32 or float64"),
    "epsilon": (lambda value: isinstance(value, float), "a floating-point number, such as 1e-07"),
    "image_data_format": (
        lambda value: value in ("channels_last", "channels_first"),
        "channels_last or channels_first",
    ),
}


def check_keras_file() -> None:
    """Refuse a user's `keras.json` with which Keras cannot be imported; runs take none of its settings.

    Keras passes over one that is not JSON (Keras 3.15, keras/src/backend/config.py).

    Raises:
        UserError: With the file and what is wrong in it.
    """
    home = "~" if os.access(resolved("~"), os.W_OK) else "/tmp"
    path = resolved(os.environ.get("KERAS_HOME", f"{home}/.keras")) / "keras.json"
    fix = "KERAS_HOME=<a folder without keras.json> python -m pipeline"
    try:
        content = json.loads(regular_file(path).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        raise UserError(f"Keras cannot read {path}: {error.strerror}", "a readable file, or no file", fix) from error
    if not isinstance(content, dict):
        raise UserError(f"Keras cannot read {path}: it contains a {type(content).__name__}", "a JSON object", fix)
    for name, (is_valid, expected) in _KERAS_FILE.items():
        if name in content and not is_valid(content[name]):
            raise UserError(f"Keras cannot read {path}: {name} is {content[name]!r}", expected, fix)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop the output of native code while TensorFlow is imported.

    TensorFlow prints a few lines before TF_CPP_MIN_LOG_LEVEL is read. `TF_CPP_MIN_LOG_LEVEL=0` shows all of it.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1"):
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


_UNUSED_PARTS = ("wrappers", "visualization", "array_slicing")
"""Modules of Keras that import scikit-learn, Matplotlib and pandas, and that few runs use."""


class _Later:
    """A finder by which the parts of Keras that few runs use are imported by their first use, not with Keras."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not (name.startswith("keras.") and name.endswith(_UNUSED_PARTS)):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def light_imports(kept: bool = False) -> Iterator[None]:
    """Import Keras without its parts that few runs use, half of TensorFlow's time; collects no garbage meanwhile.

    kept: never looks again for garbage among the objects that are there at the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    sys.meta_path.insert(0, _Later)
    try:
        yield
    finally:
        sys.meta_path.remove(_Later)
        if kept:
            gc.freeze()
        if was_enabled:
            gc.enable()


def imports_kept() -> AbstractContextManager[None]:
    """Import as `light_imports` does, for good.

    Python's collector would look through all modules several times while they are imported, and in every process that
    is forked afterwards, which copies their memory by that: half a second each time with TensorFlow.
    """
    return light_imports(kept=True)
