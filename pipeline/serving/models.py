"""Exported models: found by the run that exported them or by their address in MLflow, and asked about images."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.run_folder.pending import settings_for
from pipeline.run_folder.runs import Runs
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.models import ADDRESSES, model_folder
from pipeline.tracking.store import Store
from stages.data.convert import decode_each
from stages.errors import UserError
from stages.exporters.reload import load_saved_model
from stages.features.drift import Drift
from stages.settings.places import regular_folder

BYTES = "serve_bytes"
"""The signature of a SavedModel that takes encoded images."""


NUMBERS = ("probabilities", "prediction")
"""Answers of a model that are numbers, one for each of its class names."""


def mlflow_model(model: str, uri: str | None, outputs: Path, command: str = "serve") -> Path:
    """Return the folder of an MLflow model on this machine; makes no store in `outputs`.

    Args:
        model: a run, by its folder or the beginning of its id, or an address such as `models:/digits@champion`.
        uri: the store; None: that in which the run was recorded, of an address the one in `outputs`.
        outputs: where runs are.
        command: the module of the user's command, for errors.

    Raises:
        UserError: where there is no such run, store or model, or the run is not tracked.
    """
    fix = f"python -m pipeline.{command} <run id> --tracking-uri=<address>"
    settings, address, places = TrackingSettings("local"), model, [outputs]
    if not model.startswith(ADDRESSES):
        run = Runs(outputs).find(model, fix=fix)
        if run.run_id is None:
            problem = f"{model} was not tracked, so that MLflow has no model of it"
            raise UserError(problem, "a tracked run", f"python -m pipeline.predict {model} <images>")
        folder, address = Path(run.folder), f"runs:/{run.run_id}"
        settings, places = settings_for(folder, settings), [*folder.parents[2:3], outputs]
    if uri:
        settings = TrackingSettings("server", uri)
        settings.check("tracking")
    place = next((place for place in places if (place / "mlflow.db").is_file()), None)
    if settings.kind == "local" and place is None:
        raise UserError(f"no mlflow.db in {shorter(outputs)}", "the outputs that a run was recorded in", fix)
    return regular_folder(model_folder(address, Store(settings, place or outputs), "MODEL", fix))


def saved_model(model: str, uri: str | None, outputs: Path) -> Path:
    """Return the folder of a SavedModel: of a run on this machine its export, tracked or not; see `mlflow_model`.

    Args:
        uri: the store whose model is meant, also of a run; None: of a run its export, of an address see `mlflow_model`.

    Raises:
        UserError: where there is none.
    """
    if uri or model.startswith(ADDRESSES):
        folder = mlflow_model(model, uri, outputs, "predict")
        return next((path.parent for path in folder.rglob("saved_model.pb")), folder)
    run = Runs(outputs).find(model, fix="python -m pipeline.predict <run id>")
    folder = Path(run.folder) / "export" / "saved_model"
    if not folder.is_dir():
        raise UserError(
            f"{shorter(Path(run.folder))} has exported no SavedModel",
            "a run whose stage export has made one",
            f"python -m pipeline from=export run={model} export=saved_model",
        )
    return folder


def load(folder: Path) -> Any:
    """Return the SavedModel in `folder`, loaded by TensorFlow, which is imported here."""
    with quiet_stderr():
        return load_saved_model(str(regular_folder(folder)))


def drift_of(loaded: Any) -> Drift:
    """Return what counts rows by what a loaded SavedModel was trained on; of one of an earlier version nothing."""
    known = getattr(loaded, "trained_on", None)
    return Drift("{}" if known is None else known.numpy().decode())


def encoded_function(loaded: Any) -> Any:
    """Return the function of a loaded SavedModel that takes encoded images, string [N].

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


def scores(classify: Any, encoded: list[bytes]) -> list[dict[str, Any] | str]:
    """Return the answers for each encoded image by their names, numbers last, or why it cannot be decoded.

    Of classes these are `class_name`, `score` and `probabilities`; of labels `probabilities`; of numbers `prediction`.

    Args:
        classify: the signature `serve_bytes` of a SavedModel.
    """
    tensorflow = import_module("tensorflow")

    def classified(contents: list[bytes]) -> list[dict[str, Any]]:
        found = classify(tensorflow.constant(contents, tensorflow.string))
        columns = {name: found[name].numpy() for name in sorted(found, key=lambda name: (name in NUMBERS, name))}
        texts = {name: [text.decode() for text in column] for name, column in columns.items() if column.dtype == object}
        values = [texts.get(name, column.tolist()) for name, column in columns.items()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]

    answers = decode_each(encoded, classified, tensorflow.errors.OpError)
    return [answer if isinstance(answer, dict) else f"the image cannot be decoded: {answer}" for answer in answers]
