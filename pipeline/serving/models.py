"""Exported models, by the run that exported them or by their address in MLflow."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.run_folder.runs import Runs
from pipeline.tracking.models import ADDRESSES, model_folder
from pipeline.tracking.store import Store, sqlite_file
from stages.errors import UserError
from stages.settings.places import regular_file


def mlflow_model(model: str, uri: str | None, outputs: Path, command: str = "serve") -> Path:
    """Returns the folder of an MLflow model on this machine; makes no store.

    Args:
        model: a run, by its folder or the beginning of its id, or an address such as `models:/digits@champion`.
        uri: the store; None: that in which the run was recorded, of an address the one in `outputs`.
        outputs: where runs are.
        command: the module of the user's command, for errors.

    Raises:
        UserError: where there is no such run, store or model, or the run is not tracked.
    """
    fix = f"python -m pipeline.{command} <run id>"
    if model.startswith(ADDRESSES):
        store = _named_store(uri, outputs) if uri else _local_store([outputs])
        return model_folder(model, store, "MODEL", fix)
    run = Runs(outputs).find(model, fix=fix)
    store = _named_store(uri, outputs) if uri else _recorded_store(Path(run.folder), outputs)
    if store.settings.kind == "off" or run.run_id is None:
        raise UserError(
            f"{model} was not tracked, so that MLflow has no model of it",
            "a run with tracking=local or server",
            f"python -m pipeline.predict {model} <images>",
        )
    if store.settings.kind == "server":
        fix += " --tracking-uri=<address>"  # the recorded one is without its password
    return model_folder(f"runs:/{run.run_id}", store, "RUN", fix)


def saved_model(model: str, uri: str | None, outputs: Path) -> Path:
    """Returns the folder of a SavedModel: of a run on this machine its export, tracked or not; see `mlflow_model`.

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


def _named_store(uri: str, outputs: Path) -> Store:
    """Returns the store that the user has named.

    Raises:
        UserError: where that is no address of one, or a database that is not there, which MLflow would make.
    """
    settings = TrackingSettings("server", uri)
    try:
        settings.check("tracking")
    except UserError as error:
        problem = f"--tracking-uri={uri} is no address of an MLflow store"
        raise UserError(problem, error.expected, "--tracking-uri=http://127.0.0.1:5000") from error
    _refuse_missing(uri)
    return Store(settings, outputs)


def _recorded_store(run: Path, outputs: Path) -> Store:
    """Returns the store in which the run in the folder `run` was recorded, by its configuration.

    Raises:
        UserError: where the configuration cannot be read, or the store's database is not there.
    """
    path = run / "config.yaml"
    try:
        tracking = OmegaConf.load(regular_file(path)).tracking
        settings = TrackingSettings(str(tracking.kind), tracking.uri)
        if settings.kind not in ("local", "server", "off"):
            raise ValueError(f"tracking.kind={settings.kind}")
        settings.check("tracking")
    except Exception as error:  # a damaged file can hold anything
        raise UserError(
            f"{shorter(path)} cannot be read ({type(error).__name__}); it has the address of the run's store",
            "a run with its configuration, or the address of its store",
            "--tracking-uri=<address>",
        ) from error
    if settings.kind == "local":
        own = [parent for parent in run.parents[2:3] if parent != outputs]
        return _local_store([outputs, *own] if run.is_relative_to(outputs) else [*own, outputs])
    if settings.kind == "server":
        _refuse_missing(str(settings.uri))
    return Store(settings, outputs)


def _local_store(places: Sequence[Path]) -> Store:
    """Returns the store in the first of these folders that has one.

    Raises:
        UserError: where none has.
    """
    place = next((place for place in places if (place / "mlflow.db").is_file()), None)
    if place is None:
        raise UserError(
            f"no mlflow.db in {' nor '.join(shorter(place) for place in places)}",
            "the outputs that a run was recorded in, or the address of its store",
            "--tracking-uri=<address>",
        )
    return Store(TrackingSettings("local"), place)


def _refuse_missing(uri: str) -> None:
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        raise UserError(f"{file} is not there", "a store of MLflow", "--tracking-uri=<address>")
