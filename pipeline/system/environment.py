"""Environment variables of the process, and control of its standard error and garbage collection in slow imports."""

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
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors reach Python as exceptions; other lines are noise
    "OMP_WAIT_POLICY": "PASSIVE",  # scikit-learn's threads would busy-wait while other processes need the core
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the summary has the address, without a password
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # 13 s for a server that is down; MLflow's default of 7 takes 4 minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
"""Variables that TensorFlow reads at the first operation in a process."""


def thread_variables(count: int, deterministic: bool) -> dict[str, str]:
    """Return the variables of a process that computes with `count` threads, without those that the user has set.

    A deterministic experiment does not limit its threads, because the last bits of a sum depend on how TensorFlow
    divides it among the threads.
    """
    return {} if deterministic else {name: str(count) for name in THREADS if name not in os.environ}


def prepare() -> None:
    """Set defaults for unset variables. KERAS_BACKEND is always set, because Keras must run on TensorFlow."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        Path.home()
    except RuntimeError:  # MLflow cannot be imported by a user without HOME and without an entry in the user database
        os.environ["HOME"] = "/"  # as Docker sets it for an unknown user


_KERAS_FILE: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "floatx": (lambda value: value in ("float16", "float32", "float64"), "float16, float32 or float64"),
    "epsilon": (lambda value: isinstance(value, float), "a floating-point number, such as 1e-07"),
    "image_data_format": (
        lambda value: value in ("channels_last", "channels_first"),
        "channels_last or channels_first",
    ),
}


def check_keras_file() -> None:
    """Refuse a user's `keras.json` with which Keras cannot be imported. Runs do not use its settings.

    Keras ignores a file that is not JSON (Keras 3.15, keras/src/backend/config.py).

    Raises:
        UserError: If Keras cannot be imported with the file.
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
    with Path(os.devnull).open("w") as null_device:
        os.dup2(null_device.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


_UNUSED_PARTS = ("wrappers", "visualization", "array_slicing")
"""Keras modules that few runs use and that import scikit-learn, Matplotlib and pandas."""


class _LazyFinder:
    """A module finder that imports the Keras modules in `_UNUSED_PARTS` on first use instead of with Keras."""

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
    """Within the block, import Keras without modules that few runs use, and pause garbage collection.

    This saves half of the time for importing TensorFlow.

    Args:
        kept: Whether to exclude all objects that exist at the end of the block from garbage collection for good.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    sys.meta_path.insert(0, _LazyFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_LazyFinder)
        if kept:
            gc.freeze()
        if was_enabled:
            gc.enable()


def imports_kept() -> AbstractContextManager[None]:
    """Import like `light_imports`, and exclude the imported modules from garbage collection for good.

    Python's garbage collector would traverse all modules several times during the import, and again in every forked
    process, which copies their memory. With TensorFlow, this takes half a second each time.
    """
    return light_imports(kept=True)
