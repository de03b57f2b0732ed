"""A SavedModel as an MLflow model.

`mlflow.tensorflow.log_model` saves a Keras 3 model as `.keras`, never as a SavedModel, and needs a live object and an
active run. This writes the same layout around the files that the export stage has already checked, so that what is
tracked is to the byte what was compared.
"""

import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import yaml
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from pipeline.tracking.params import CARD, CONFIGURATION, INPUT_EXAMPLE, SERVING_EXAMPLE
from stages.results import Exported

REQUIRED = ("tensorflow", "keras", "numpy", "mlflow")
"""Packages without which the model does not load or answers differently; all others follow from these."""


@contextmanager
def mlflow_model(exported: Exported, run_folder: Path, run_id: str, model_id: str) -> Iterator[Path]:
    """Yields a temporary folder with the MLflow model: flavors `tensorflow` and `python_function`.

    With it go the run's configuration, the model's card, and an example of its input, as far as the run has them.

    `mlflow.pyfunc.load_model` gives an object whose `predict` takes float32 [N, H, W, C] unscaled pixels and returns
    float32 [N, classes] probabilities; `mlflow.tensorflow.load_model` gives the SavedModel itself.
    """
    pinned = [f"{name}=={metadata.version(name)}" for name in REQUIRED]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(exported.path, folder / "tf2model")
        model = Model(run_id=run_id, model_id=model_id, signature=signature(exported))
        model.metadata = {"class_names": list(exported.class_names), **_add_files(run_folder, folder)}
        if (folder / INPUT_EXAMPLE).exists():
            model.saved_input_example_info = _EXAMPLE
        model.add_flavor("tensorflow", code=None, saved_model_dir="tf2model", model_type="tf2-module")
        mlflow.pyfunc.add_to_model(
            model, loader_module="mlflow.tensorflow", conda_env="conda.yaml", python_env="python_env.yaml"
        )
        model.model_size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        _write_environment(folder, pinned)
        model.save(str(folder / "MLmodel"))
        yield folder


_EXAMPLE = {
    "artifact_path": INPUT_EXAMPLE,
    "serving_input_path": SERVING_EXAMPLE,
    "type": "ndarray",
}
"""The entry that MLflow writes for an example that is an array (`mlflow.models.utils._Example`)."""


def _add_files(run_folder: Path, folder: Path) -> dict[str, str]:
    """Copies the run's files to the model's folder; returns which of them it has, by what they are."""
    files = {"configuration": run_folder / CONFIGURATION, "model_card": run_folder / "export" / CARD}
    there = {name: path for name, path in files.items() if path.is_file()}
    example = run_folder / "export" / INPUT_EXAMPLE
    for path in [*there.values(), *([example] if example.is_file() else [])]:
        shutil.copyfile(path, folder / path.name)
    if example.is_file():
        (folder / SERVING_EXAMPLE).write_text(f'{{"inputs": {example.read_text()}}}')
    return {name: path.name for name, path in there.items()}


def signature(exported: Exported) -> ModelSignature:
    """Returns the signature: unnamed, because MLflow would hand named inputs over as a dict, which no module takes."""
    inputs = TensorSpec(np.dtype(np.float32), (-1, *exported.image_shape))
    outputs = TensorSpec(np.dtype(np.float32), (-1, len(exported.class_names)))
    return ModelSignature(inputs=Schema([inputs]), outputs=Schema([outputs]))


def _write_environment(folder: Path, pinned: list[str]) -> None:
    python = platform.python_version()
    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": pinned}],
    }
    virtual = {"python": python, "build_dependencies": ["pip"], "dependencies": ["-r requirements.txt"]}
    (folder / "requirements.txt").write_text("\n".join(pinned) + "\n")
    (folder / "conda.yaml").write_text(yaml.safe_dump(conda, sort_keys=False))
    (folder / "python_env.yaml").write_text(yaml.safe_dump(virtual, sort_keys=False))
