"""`python -m pipeline.predict`: what an exported model says of image files or rows of tables."""

import argparse
import glob
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pipeline import serving
from pipeline.command_line.command import Command, print_error, print_warning, run_command, say
from pipeline.run_folder.lock import output_locked
from pipeline.system import streams
from pipeline.system.signals import CLOSED_OUTPUT
from stages.errors import UserError, printable
from stages.features.drift import IMAGES, Drift
from stages.settings.folders import files_below
from stages.settings.places import regular_file
from stages.settings.table import TableSettings
from stages.settings.table_files import NAMES

BATCH = 32
"""Images that are decoded and classified at once."""


def _predict(options: argparse.Namespace) -> int:
    """Print what the model says of images or of rows; return 1 where a file could not be classified, else 0.

    Raises:
        UserError: for a wrong argument.
    """
    if options.output is not None and options.output.suffix not in (".parquet", ".csv"):
        fix = f"--output={options.output.with_suffix('.parquet')}"
        raise UserError(f"--output={options.output} is not supported", "a file that ends in .parquet or .csv", fix)
    if options.output is not None and options.output.resolve() in [path.resolve() for path in options.files]:
        raise UserError(
            f"--output={options.output} is also an input file", "a different file", "--output=answers.parquet"
        )
    for path in options.files:
        if path.name.lower().endswith(NAMES) and not path.exists() and not glob.glob(str(path), recursive=True):  # noqa: PTH207 - an absolute pattern
            raise UserError(f"{path} was not found", "existing files or folders, or a pattern such as 'new/*.csv'")
    with output_locked(options.output) if options.output is not None else nullcontext():
        return _answer(options)


def _answer(options: argparse.Namespace) -> int:
    loaded = serving.load(serving.saved_model(options.model, options.tracking_uri, options.outputs))
    files = list(_files(options.files, serving.suffixes_of(loaded)))
    drift = serving.drift_of(loaded)
    if serving.takes_columns(loaded):
        try:
            code = _answer_tables(loaded, serving.as_trained(loaded, files), options, drift)
        except UserError as error:
            if "data." in error.fix:  # settings, which are those of the training here
                raise UserError(error.problem, f"{error.expected}, as in training") from error
            raise
    elif options.output is not None:
        problem = f"--output={options.output} is not supported for a model of images"
        raise UserError(problem, "a model of tables", "--json")
    else:
        code = _classify_images(loaded, files, options, drift)
    for line in drift.sentences("these rows" if serving.takes_columns(loaded) else "these images"):
        print_warning(line)
    return code


def _classify_images(loaded: Any, files: Sequence[Path], options: argparse.Namespace, drift: Drift) -> int:
    classify = serving.encoded_function(loaded)
    names = serving.class_names(loaded)
    failed = 0
    for file, answer in _answers(classify, files, drift):
        if not streams.is_read():
            return CLOSED_OUTPUT.exit_code
        if isinstance(answer, str):
            print_error(f"{file}: {answer}")
            failed += 1
            continue
        key, numbers = answer.popitem()
        if options.json:
            print(json.dumps({"file": str(file), **answer, key: dict(zip(names, numbers, strict=True))}), flush=True)
        else:
            best = _best(numbers, names, options.top if key == "probabilities" else len(names))
            print(printable(str(file)), *best, sep="\t", flush=True)
    return 1 if failed else 0


def _answer_tables(loaded: Any, settings: TableSettings, options: argparse.Namespace, drift: Drift) -> int:
    """Writes, or prints a line a row of, what the model says of tables; returns 0."""
    if options.output is not None:
        count = serving.write_answers(loaded, settings, options.output, drift)
        say(f"wrote {count:,} rows to {options.output}")
        return 0
    names = serving.class_names(loaded)
    for table in serving.answers(loaded, settings, drift):
        for row in table.to_pylist():
            lists = {key: value for key, value in row.items() if isinstance(value, list) and len(value) == len(names)}
            row |= {key: dict(zip(names, value, strict=True)) for key, value in lists.items()}
            print(
                json.dumps(row) if options.json else "\t".join(printable(_shown(value)) for value in row.values()),
                flush=True,
            )
            if not streams.is_read():
                return CLOSED_OUTPUT.exit_code
    return 0


def _shown(value: Any) -> str:
    """Return a value with the seven digits of a float32, and probabilities as `large 0.98, small 0.02`."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.4g}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.7g}" if isinstance(value, float) and abs(value) < 1e7 else str(value)


def _files(paths: Sequence[Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yields the files, and those below folders that have one of the suffixes, as training finds them.

    Raises:
        UserError: where a folder has none.
    """
    for path in paths:
        inside = [file for file in files_below(path) if file.name.lower().endswith(suffixes)]
        if path.is_dir() and not inside:
            raise UserError(f"{path} contains no files for this model", f"files that end in {', '.join(suffixes)}")
        yield from inside if path.is_dir() else [path]


def _answers(classify: Any, files: Sequence[Path], drift: Drift) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """Yields each file with its answer, or with what is wrong with it; `drift` counts the images."""
    for start in range(0, len(files), BATCH):
        contents: list[tuple[Path, bytes]] = []
        for file in files[start : start + BATCH]:
            try:
                contents.append((file, regular_file(file).read_bytes()))
            except OSError as error:
                yield file, str(error.strerror)
        drift.add_encoded([content for _, content in contents[:: 1 + len(files) // IMAGES]])
        answers = serving.scores(classify, [content for _, content in contents]) if contents else []
        yield from ((file, answer) for (file, _), answer in zip(contents, answers, strict=True))


def _best(row: Sequence[float], names: Sequence[str], count: int) -> list[str]:
    """Returns the likeliest classes, each followed by its probability."""
    order = sorted(range(len(row)), key=lambda index: -row[index])[:count]
    return [text for index in order for text in (printable(names[index]), f"{row[index]:.4f}")]


main = Command("predict", _predict, "Predict images, texts or rows of tables with an exported model.")
main.add_argument("model", metavar="RUN|MODEL", help="folder or id of a run, or models:/<name>@<alias>")
main.add_argument("files", nargs="+", type=Path, help="images, text files or tables, or folders of them")
main.add_argument(
    "--top", type=int, default=3, metavar="N", help="number of classes to print per image (default: %(default)s)"
)
main.add_argument("--json", action="store_true", help="print one line of JSON per image or row, with all probabilities")
main.add_argument("-o", "--output", type=Path, metavar="FILE", help="Parquet or CSV file to write (tables only)")
main.add_argument("--tracking-uri", help="MLflow server of models:/… (default: the database in --outputs)")

if __name__ == "__main__":
    run_command(main)
