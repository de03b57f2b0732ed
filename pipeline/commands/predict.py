"""`python -m pipeline predict`: predict images, texts, rows of tables or arrays with an exported model."""

import argparse
import glob
from contextlib import nullcontext
from pathlib import Path

from pipeline.command_line.command import Command
from stages.errors import UserError


def _predict(options: argparse.Namespace) -> int:
    """Print or write the predictions; return 1 if a file could not be used, else 0.

    Raises:
        UserError: If an argument is wrong.
    """
    from pipeline.runs.lock import output_locked
    from pipeline.serving.files import predict
    from stages.settings.table_files import NAMES

    if options.output is not None and options.output.suffix not in ("", ".parquet", ".csv"):
        fix = f"--output={options.output.with_suffix('.parquet')}"
        expected = "a file that ends in .parquet or .csv, or a folder for masks"
        raise UserError(f"--output={options.output} is not supported", expected, fix)
    if options.output is not None and options.output.resolve() in [path.resolve() for path in options.files]:
        raise UserError(
            f"--output={options.output} is also an input file", "a different file", "--output=answers.parquet"
        )
    for path in options.files:
        if path.name.lower().endswith(NAMES) and not path.exists() and not glob.glob(str(path), recursive=True):  # noqa: PTH207 - an absolute pattern
            raise UserError(f"{path} was not found", "existing files or folders, or a pattern such as 'new/*.csv'")
    with output_locked(options.output) if options.output is not None else nullcontext():
        return predict(options)


main = Command("predict", _predict, "Predict images, texts, rows of tables or arrays with an exported model.")
main.add_argument("model", metavar="RUN|MODEL", help="folder or id of a run, or models:/<name>@<alias>")
main.add_argument("files", nargs="+", type=Path, help="images, texts, tables or arrays (.npz), or folders of them")
main.add_argument(
    "--top", type=int, default=3, metavar="N", help="number of classes to print per image (default: %(default)s)"
)
main.add_argument("--json", action="store_true", help="print one line of JSON per image or row, with all probabilities")
main.add_argument(
    *("-o", "--output"), type=Path, metavar="PATH", help="Parquet or CSV file to write (tables), or folder of masks"
)
main.add_argument("--root", type=Path, metavar="FOLDER", help="folder of images that a table names (default: its own)")
main.add_argument("--tracking-uri", help="MLflow server of models:/… (default: the database in --outputs)")
