"""The `export` stage: the trained model in one or several formats, each reloaded and compared with it."""

import dataclasses
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stages.errors import UserError
from stages.exporters import standalone
from stages.exporters.comparison import Compared, Reference, table, write_tables
from stages.exporters.exporter import Exporter
from stages.exporters.fresh_process import FreshProcess, take
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Exported, Model, Record, Trained
from stages.safe_places import safe_place
from stages.settings.results import ExportSettings, SavedModelSettings
from stages.storage.atomic import atomic_write
from stages.tables import aligned
from stages.targets import made


def export(
    trained: Trained, dataset: Dataset, settings: ExportSettings, folder: Path, reporter: Reporter | None = None
) -> Exported:
    """Writes every format to `folder/export`, reloads it and compares its answers with the model's on test examples.

    All formats take unscaled pixels, as the data set has them, and return probabilities. The table of their differences
    is in `export/formats.md` and `export/formats.csv`.

    Raises:
        UserError: where weights are not finite, the model cannot be written in a format, or the file differs by more
            than the format's limits.
    """
    reporter = reporter or Silent()
    _refuse_invalid(trained)
    exporters = _exporters(settings)
    place = folder / "export"
    place.mkdir(exist_ok=True)
    model = dataclasses.replace(trained.model.on_one_device())  # its float32 copy, if one is made, lives here
    policy = trained.model.policy
    process = take() if settings.reload == "process" else None
    reload = partial(_reload, process, settings.reload_seconds)
    paths: dict[str, Path] = {}
    rows: list[Compared] = []
    try:
        reference = Reference.of(trained.model, dataset, settings.compared_examples)
        for name, exporter in exporters.items():
            path = paths[name] = place / _file(name, exporter.suffix)
            reporter.doing(f"export {name}")
            atomic_write(path, partial(exporter.write, model, dataset))
            safe_place()
            if exporter.loader is not None:
                rows.append(reference.compare(name, path, exporter, exporter.limit(policy), reload))
            safe_place()
    finally:
        if process is not None:
            process.close()
    if len(rows) > 1:
        for line in aligned(table(rows)):
            reporter.log(f"export      {line}")
    files = write_tables(rows, place)
    for row in rows:
        row.refuse(exporters[row.name], policy)
    return _exported(paths, rows, files, dataset)


def _reload(process: FreshProcess | None, seconds: float, order: dict[str, Any]) -> float:
    """Carry out an order of `stages.exporters.standalone`, here or in `process`; return the milliseconds it tells."""
    return standalone.measure(**order) if process is None else float(process.ask(order, seconds)["milliseconds"])


def check_formats(model: Model, dataset: Dataset, settings: ExportSettings) -> None:
    """Refuses a network, trained or not, that a format cannot hold: of each class of exporters one is asked.

    It leaves the model as it was, and Python's random numbers, of which Keras makes the seeds of new layers.

    Raises:
        UserError: where one cannot.
    """
    exporters = {type(exporter): exporter for exporter in _exporters(settings).values()}
    asked = [exporter for kind, exporter in exporters.items() if kind.check is not Exporter.check]
    if not asked:
        return  # without a copy of the model
    state = random.getstate()
    on_one_device = dataclasses.replace(model.on_one_device())  # a float32 copy would keep today's weights
    for exporter in asked:
        exporter.check(on_one_device, dataset)
        safe_place()
    random.setstate(state)


def _exporters(settings: ExportSettings) -> dict[str, Exporter]:
    formats = settings.formats or {"saved_model": SavedModelSettings()}
    return {name: _exporter(name, part) for name, part in formats.items()}


def _refuse_invalid(trained: Trained) -> None:
    """Refuses weights that are not finite, also those that are not trained, such as the statistics of BatchNorm."""
    network = trained.model.network
    for weight, array in zip(network.weights, network.get_weights(), strict=True):
        if "float" in weight.dtype and not np.isfinite(array.astype(np.float64)).all():
            raise UserError(
                f"{weight.path} has values that are not finite (nan or inf)",
                "a model whose weights all are",
                "another training, with a smaller optimizer.learning_rate",
            )


def _file(name: str, suffix: str) -> str:
    return f"model{suffix}" if suffix == f".{name}" else f"{name}{suffix}"


def _exporter(name: str, settings: Any) -> Exporter:
    """Returns the exporter that `_target_` names, with its settings.

    Raises:
        UserError: where it cannot be imported, or does not take them.
    """
    arguments = dict(settings if isinstance(settings, Mapping) else vars(settings))
    target = str(arguments.pop("_target_", ""))
    setting = f"export.formats.{name}._target_"
    expected = "a class that extends stages.exporters.exporter.Exporter"
    fix = f"{setting}=stages.exporters.saved_model.SavedModel"
    exporter = made(target, f"{setting}={target}", f"{expected}, and its settings", fix, **arguments)
    if not isinstance(exporter, Exporter):
        raise UserError(f"{setting}={target} is no exporter", expected, fix)
    return exporter


def _exported(paths: Mapping[str, Path], rows: list[Compared], tables: tuple[Path, ...], dataset: Dataset) -> Exported:
    first = "saved_model" if "saved_model" in paths else next(iter(paths))
    differences = {row.name: row.max_abs_diff for row in rows}
    difference = differences.get(first, float("nan"))
    metrics = {name: value for row in rows for name, value in row.metrics.items()}
    if first in differences:
        metrics["export/max_abs_diff"] = difference
    others = {name: path for name, path in paths.items() if name != first}
    own = () if first == "saved_model" else (paths[first],)
    record = Record(metrics=metrics, files={"export": (*own, *others.values(), *tables)})
    return Exported(paths[first], dataset.image_shape, dataset.class_names, difference, record, first, others)
