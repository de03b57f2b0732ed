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

from stages.results import Exported

REQUIRED = ("tensorflow", "keras", "numpy", "mlflow")


@contextmanager
def mlflow_model(exported: Exported, run_id: str, model_id: str) -> Iterator[Path]:
    """Yields a temporary folder with the MLflow model: flavors `tensorflow` and `python_function`.

    `mlflow.pyfunc.load_model` gives an object whose `predict` takes float32 [N, H, W, C] unscaled pixels and returns
    float32 [N, classes] probabilities; `mlflow.tensorflow.load_model` gives the SavedModel itself.
    """
    pinned = [f"{name}=={metadata.version(name)}" for name in REQUIRED]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(exported.path, folder / "tf2model")
        model = Model(run_id=run_id, model_id=model_id, signature=signature(exported))
        model.metadata = {"class_names": list(exported.class_names)}
        model.add_flavor("tensorflow", code=None, saved_model_dir="tf2model", model_type="tf2-module")
        mlflow.pyfunc.add_to_model(
            model, loader_module="mlflow.tensorflow", conda_env="conda.yaml", python_env="python_env.yaml"
        )
        model.model_size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        _write_environment(folder, pinned)
        model.save(str(folder / "MLmodel"))
        yield folder


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
