"""Exported models by the run that exported them or by their address in MLflow."""

from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.run.finding import find_run
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.weights import model_folder
from stages.errors import UserError

ADDRESSES = ("models:/", "runs:/")
"""Beginnings of a model's address in MLflow."""

BYTES = "serve_bytes"
"""The signature of a SavedModel that takes encoded images."""


def mlflow_model(model: str, uri: str | None, outputs: Path) -> Path:
    """Returns the folder of an MLflow model on this machine.

    Args:
        model: a run, by its folder or the beginning of its id, or an address such as `models:/digits@champion`.
        uri: the store of an address; None: the one in `outputs`.
        outputs: where runs are.

    Raises:
        UserError: where there is no such run or model, or the run is not tracked.
    """
    if model.startswith(ADDRESSES):
        return model_folder(model, TrackingSettings("server" if uri else "local", uri), outputs, "MODEL")
    run = find_run(model, outputs, "RUN")
    tracking = OmegaConf.load(Path(run.folder) / "config.yaml").tracking
    if tracking.kind == "off" or run.run_id is None:
        raise UserError(
            f"RUN={model} was not tracked, so that MLflow has no model of it",
            "a run with tracking=local or server",
            f"python -m pipeline.predict {model} <images>",
        )
    settings = TrackingSettings(str(tracking.kind), tracking.uri)
    return model_folder(f"runs:/{run.run_id}", settings, Path(run.folder).parents[2], "RUN")


def saved_model(model: str, uri: str | None, outputs: Path) -> Path:
    """Returns the folder of a SavedModel: of a run on this machine its export, tracked or not; see `mlflow_model`.

    Raises:
        UserError: where there is none.
    """
    if model.startswith(ADDRESSES):
        folder = mlflow_model(model, uri, outputs)
        return next((path.parent for path in folder.rglob("saved_model.pb")), folder)
    run = find_run(model, outputs, "RUN")
    folder = Path(run.folder) / "export" / "saved_model"
    if not folder.is_dir():
        raise UserError(
            f"{shorter(Path(run.folder))} has exported no SavedModel",
            "a run whose stage export has made one",
            f"python -m pipeline from=export run={model} export=saved_model",
        )
    return folder


def load(folder: Path) -> Any:
    """Returns the SavedModel in `folder`, loaded by TensorFlow, which is imported here."""
    with quiet_stderr():
        return import_module("tensorflow").saved_model.load(str(folder))


def encoded_function(loaded: Any) -> Any:
    """Returns the function of a loaded SavedModel that takes encoded images, string [N].

    Raises:
        UserError: where it has none.
    """
    if BYTES not in loaded.signatures:
        raise UserError(
            f"the model has no {BYTES}: its images have neither 1 nor 3 channels, or an earlier version exported it",
            "a model of gray or color images, exported by this version",
            "python -m pipeline from=export run=<run>",
        )
    return loaded.signatures[BYTES]
