"""The `export` stage: the trained model in one or several formats, each reloaded and compared with it."""

import dataclasses
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import tensorflow as tf

from stages.declared import declare
from stages.exporters import fresh_process
from stages.exporters.comparison import Compared, compare, table
from stages.exporters.exporter import Exporter
from stages.exporters.saved_model import SavedModel
from stages.features.images import ImageFeature
from stages.reporter import Reporter, safe_place
from stages.results import Dataset, Exported, Model, Record, Trained
from stages.settings.results import ExportSettings, SavedModelSettings
from stages.storage.atomic import atomic_write
from stages.tables import aligned, markdown
from stages.targets import made_of
from stages.tasks.task import Task


def export(
    trained: Trained, dataset: Dataset, settings: ExportSettings, folder: Path, reporter: Reporter | None = None
) -> Exported:
    """Write every format to `folder/export`, reloads it and compares its answers with the model's on test examples.

    All formats take unscaled pixels, as the data set has them, and return probabilities; of tables LiteRT and ONNX take
    what the encoder returns. The table of their differences is in `export/formats.md`.

    Raises:
        UserError: where the model cannot be written in a format, or the file differs by more than the format's limits.
    """
    reporter = reporter or Reporter()
    exporters = _exporters(settings)
    place = folder / "export"
    place.mkdir(exist_ok=True)
    start_early(settings)
    model = dataclasses.replace(trained.model.on_one_device())  # its float32 copy, if one is made, lives here
    paths: dict[str, Path] = {}
    for name, exporter in exporters.items():
        path = paths[name] = place / _file(name, exporter.suffix)
        reporter.doing(f"export {name}")
        atomic_write(path, partial(exporter.write, model, dataset))
        safe_place()

    reloadable = {name: (paths[name], exporter) for name, exporter in exporters.items() if exporter.loader is not None}
    rows = compare(trained.model, dataset, reloadable, settings) if reloadable else []
    if len(rows) > 1:
        for line in aligned(table(rows)):
            reporter.log(f"export      {line}")
    (place / "formats.md").write_text(markdown(table(rows)))
    for row in rows:
        row.refuse(exporters[row.name], trained.model.computes_in)
    exported = _exported(paths, rows, place / "formats.md", dataset)
    encoded = [paths[name].name for name, one in exporters.items() if dataset.encoder and not one.takes_features]
    note = f"{', '.join(encoded)}: the output of the layer `encoder` in model.keras (export=keras)" if encoded else ""
    if note:
        reporter.log(f"export      input of {note}")
    return dataclasses.replace(exported, license=settings.license, answers=_answers(trained.model.task), note=note)


def check(settings: ExportSettings, dataset: Dataset, model: Model) -> None:
    """Refuse a network, trained or not, that a format cannot hold: of each class of exporters one is asked.

    It leaves the model as it was, and Python's random numbers, of which Keras makes the seeds of new layers.

    Raises:
        UserError: where one cannot.
    """
    found = sorted(_exporters(settings).values(), key=lambda exporter: getattr(exporter, "weights", "") == "float16")
    asked = {type(exporter): exporter for exporter in found}  # of LiteRT's, float16 refuses most
    if asked.keys() == {SavedModel}:  # which holds any network
        return  # without a copy of the model
    state = random.getstate()
    on_one_device = dataclasses.replace(model.on_one_device())  # a float32 copy would keep today's weights
    for exporter in asked.values():
        exporter.check(on_one_device, dataset)
        safe_place()
    random.setstate(state)


def _exporters(settings: ExportSettings) -> dict[str, Exporter]:
    formats = settings.formats or {"saved_model": SavedModelSettings()}
    return {name: made_of(part) for name, part in formats.items()}


def _file(name: str, suffix: str) -> str:
    return f"model{suffix}" if suffix == f".{name}" else f"{name}{suffix}"


def _exported(paths: Mapping[str, Path], rows: list[Compared], formats: Path, dataset: Dataset) -> Exported:
    images = dataset.images
    shape = tuple(int(size or 0) for size in images.shape) if images is not None else ()
    first = "saved_model" if "saved_model" in paths else next(iter(paths))
    differences = {row.name: row.max_abs_diff for row in rows}
    difference = differences.get(first, float("nan"))
    metrics = {name: value for row in rows for name, value in row.metrics.items()}
    if first in differences:
        metrics["export/max_abs_diff"] = difference
    others = {name: path for name, path in paths.items() if name != first}
    own = () if first == "saved_model" else (paths[first],)
    record = Record(metrics=metrics, files={"export": (*own, *others.values(), formats)})
    dtypes = {
        name: one.kind if isinstance(one, ImageFeature) else f"{one.dtype}{list(one.shape) or ''}"
        for name, one in dataset.features.items()
    }
    columns = {} if images is not None else dtypes
    return Exported(paths[first], shape, dataset.task.names, difference, record, first, others, columns)


def _answers(task: Task) -> dict[str, str]:
    """Return the dtypes of what a SavedModel answers, by name; see `Exported`."""
    answers = task.head.predictions(tf.zeros((1, *task.head.shape)))
    named = {task.head.answer: answers, **task.head.explained(answers, tf.constant(task.names))}
    return {name: f"{value.dtype.name}{value.shape.as_list()[1:] or ''}" for name, value in named.items()}


def start_early(settings: ExportSettings) -> None:
    """Start the process that reloads the files, which imports TensorFlow while the run is evaluated."""
    if settings.reload == "process":
        fresh_process.prestart()


declare(export, check=check, start_early=start_early, clean_up=fresh_process.end)
