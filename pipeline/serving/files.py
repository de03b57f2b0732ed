"""Predict for files: images, texts and tables, printed line by line or written to a file."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.command_line.command import print_error, print_warning, say
from pipeline.serving import models, series, signatures
from pipeline.serving.masks import MASK, Masks
from pipeline.system import streams
from pipeline.system.signals import CLOSED_OUTPUT
from stages.errors import UserError, printable
from stages.features.drift import Drift
from stages.features.kinds import WIDE_ROWS
from stages.settings.folders import files_below
from stages.settings.places import regular_file
from stages.settings.table import TableSettings
from stages.settings.table_files import format_of

BATCH = 32
"""Number of images that are decoded and classified at once."""


def predict(options: argparse.Namespace) -> int:
    """Print or write the predictions for files; return 1 if a file could not be used, else 0.

    Args:
        options: The options of `python -m pipeline predict`.

    Raises:
        UserError: If the model was not found, or a table or an option does not fit it.
    """
    loaded = models.load(models.saved_model(options.model, options.tracking_uri, options.outputs))
    files = list(_files(options.files, signatures.suffixes_of(loaded)))
    drift = models.drift_of(loaded)
    if options.root is not None and not signatures.images_among_columns(loaded):
        raise UserError(f"--root={options.root} requires a model of tables with images", "a command without --root")
    are_arrays = bool(files) and all(format_of(file) == "npz" for file in files)
    are_rows = signatures.accepts_columns(loaded) or signatures.accepts_windows(loaded) or are_arrays
    if are_rows:
        predict_rows = _forecast if signatures.accepts_windows(loaded) else _predict_tables
        try:
            code = predict_rows(loaded, models.reading_settings(loaded, files, options.root), options, drift)
        except UserError as error:
            if "data." in error.fix:  # this command has no settings: files are read as in training
                raise UserError(error.problem, f"{error.expected}, as in training") from error
            raise
    elif options.output is not None and (options.output.suffix or not models.predicts_masks(loaded)):
        problem = f"--output={options.output} is not supported for a model of images"
        raise UserError(problem, "a model of tables, or a folder for the masks of a model of masks", "--json")
    else:
        code = _classify_images(loaded, files, options, drift)
    for line in drift.sentences("these rows" if are_rows else "these images"):
        print_warning(line)
    return code


def _classify_images(loaded: Any, files: Sequence[Path], options: argparse.Namespace, drift: Drift) -> int:
    classify = models.encoded_function(loaded)
    names = models.class_names(loaded)
    masks = Masks(options.output, names, models.resize_of(loaded))
    failed = 0
    for file, result in _predictions(classify, files, drift):
        if not streams.is_read():
            return CLOSED_OUTPUT.exit_code
        if isinstance(result, str):
            print_error(f"{file}: {result}")
            failed += 1
            continue
        if MASK in result:
            counts = masks.add(file, result[MASK])
            shares = [text for name, count in counts.items() for text in (printable(name), _share(count, counts))]
            fields = json.dumps({"file": str(file), "pixels": counts}), "\t".join([printable(str(file)), *shares])
            print(fields[0] if options.json else fields[1], flush=True)
            continue
        key, numbers = result.popitem()
        if options.json:
            print(json.dumps({"file": str(file), **result, key: dict(zip(names, numbers, strict=True))}), flush=True)
        else:
            best = _best(numbers, names, options.top if key == "probabilities" else len(names))
            print(printable(str(file)), *best, sep="\t", flush=True)
    masks.write_table()
    return 1 if failed else 0


def _share(count: int, counts: Mapping[str, int]) -> str:
    return f"{count / sum(counts.values()):.4f}"


def _predict_tables(loaded: Any, settings: TableSettings, options: argparse.Namespace, drift: Drift) -> int:
    """Write the predictions for the rows of tables to a file, or print one line per row; return the exit code."""
    if options.output is not None:
        _refuse_folder(options.output)
        count = models.write_predictions(loaded, settings, options.output, drift)
        say(f"wrote {count:,} rows to {options.output}")
        return 0
    names = models.class_names(loaded)
    for table in models.predictions(loaded, settings, drift):
        for row in table.to_pylist():
            lists = {key: value for key, value in row.items() if isinstance(value, list) and len(value) == len(names)}
            row |= {key: dict(zip(names, value, strict=True)) for key, value in lists.items()}
            print(
                json.dumps(row) if options.json else "\t".join(printable(_formatted(value)) for value in row.values()),
                flush=True,
            )
            if not streams.is_read():
                return CLOSED_OUTPUT.exit_code
    return 0


def _refuse_folder(output: Path) -> None:
    if not output.suffix:
        fix = f"--output={output}.parquet"
        raise UserError(f"--output={output} is not supported", "a file that ends in .parquet or .csv", fix)


def _forecast(loaded: Any, settings: TableSettings, options: argparse.Namespace, drift: Drift) -> int:
    """Write the forecasts for the series in tables to a file, or print one line per step; return the exit code."""
    if options.output is not None:
        _refuse_folder(options.output)
    table = series.forecasts_of_files(loaded, settings, drift)
    if options.output is not None:
        series.write_forecasts(table, options.output)
        say(f"wrote {len(table):,} rows to {options.output}")
        return 0
    for line in series.lines(table, options.json):
        print(line, flush=True)
        if not streams.is_read():
            return CLOSED_OUTPUT.exit_code
    return 0


def _formatted(value: Any) -> str:
    """Return a number with the seven digits of a float32, and probabilities as `large 0.98, small 0.02`."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.4g}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(_formatted, value))
    return f"{value:.7g}" if isinstance(value, float) and abs(value) < 1e7 else str(value)


def _files(paths: Sequence[Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files, and the files in folders that have one of the suffixes, in the order of training.

    Raises:
        UserError: If a folder contains none.
    """
    for path in paths:
        inside = [file for file in files_below(path) if file.name.lower().endswith(suffixes)]
        if path.is_dir() and not inside:
            raise UserError(f"{path} contains no files for this model", f"files that end in {', '.join(suffixes)}")
        yield from inside if path.is_dir() else [path]


def _predictions(classify: Any, files: Sequence[Path], drift: Drift) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """Yield each file with its prediction, or with the reason why it cannot be used; `drift` counts the images."""
    for start in range(0, len(files), BATCH):
        contents: list[tuple[Path, bytes]] = []
        for file in files[start : start + BATCH]:
            try:
                contents.append((file, regular_file(file).read_bytes()))
            except OSError as error:
                yield file, str(error.strerror)
        drift.add_encoded([content for _, content in contents[:: 1 + len(files) // WIDE_ROWS]])
        results = models.scores(classify, [content for _, content in contents]) if contents else []
        yield from ((file, result) for (file, _), result in zip(contents, results, strict=True))


def _best(row: Sequence[float], names: Sequence[str], count: int) -> list[str]:
    """Return the most likely classes, each followed by its probability."""
    order = sorted(range(len(row)), key=lambda index: -row[index])[:count]
    return [text for index in order for text in (printable(names[index]), f"{row[index]:.4f}")]
