"""Commands as a new user types them: each is accepted, or refused with a suggestion that works."""

import gzip
import shlex
from pathlib import Path

import pytest

from pipeline.command_line.overrides import parsed
from tests.pipeline.experiments import assert_refused, command_error

ADVISED = {
    "--epochs 5": "train.epochs=5", "--lr=0.1": "optimizer.learning_rate=0.1", "--batch-size 32": "train.batch_size=32",
    "--gpus 2": "strategy=mirrored", "seed=1 --epochs 3": "train.epochs=3", "--train.epochs 3": "train.epochs=3",
    "--config-name foo": "experiment=foo", "-cn mnist_cnn": "experiment=mnist_cnn", "-cp conf": "--config-dir <folder>",
    "--seed 3": "seed=3", "--model mlp": "model=mlp", "--hepl": "--help", "-h=1": "python -m pipeline --help",
    "-help": "--help", "-?": "--help", "--verbose": "--help", "--password hunter2": "--help", "help": "--help",
    "-v": "--version", "--cfg": "--cfg job", "--cfg all": "--cfg job", "--config-dir": "--config-dir <folder>",
    "train.epochs = 5": "train.epochs=5", "train.epochs= 5": "train.epochs=5", "train.epochs =5": "train.epochs=5",
    "train:epochs=5": "train.epochs=5", "train.epochs: 5": "train.epochs=5",
    "houses.csv": "data=table data.files=houses.csv data.target=<column>",
    "data=houses.csv": "data=table data.files=houses.csv data.target=<column>",
    "data=./photos": "data=image_folder data.dir=./photos",
    "data='~/my photos/'": "data=image_folder \"data.dir='~/my photos/'\"",
    "'model.network.filters=(8,16)'": "'model.network.filters=[8,16]'",
    "'model.network.filters=[8 16'": "'model.network.filters=[<value>,<value>]'",
    "model=cnn model.network.filters=8": "'model.network.filters=[8]'",
    "train.epochs=5.0": "train.epochs=5", "train.epochs=2e1": "train.epochs=20",
    "data.val_fraction=20%": "data.val_fraction=0.2",
    "train.epochs=1,2": "python -m pipeline -m train.epochs=1,2", "+train.epochs=5": "train.epochs=5",
    "+train.epoch=5": "train.epochs=5", "augment.flip=true": "augment.horizontal_flip=true",
    "train.limit=10": "python -m pipeline --cfg job",
    "schedule=cosine schedule.warmup=5": "schedule.warmup_epochs=5",
    "train.monitor=val_acuracy": "train.monitor=val_accuracy",
    "precision.policy=mixed_fp16": "precision.policy=mixed_float16",
    "optimizer.learning_rate=1e-3,": "optimizer.learning_rate=1e-3", "seed=interval(a,b)": "seed=<value>",
    "train.optimizer.beta_1=0.8": "optimizer.beta_1=0.8", "model.layers=3": "model=mlp 'model.network.hidden=[64,64]'",
    "+pipeline.extra=x": "++pipeline.extra=null",
    "task=multiclass": "task=classification", "data=imagenet": "data=tfds data.name=imagenet2012",
    "data=csv": "data=table data.files=<file> data.target=<column>", "export=h5": "export=keras",
    "debug=yes": "debug=fast",
    "export=[tflite,onnx]": "export=litert", "~train": "pipeline.train=null",
    "tracking=server tracking.uri=localhost:5000": "tracking.uri=http://localhost:5000",
}  # fmt: skip


@pytest.mark.parametrize("given", ADVISED)
def test_the_words_of_a_new_user_get_suggestions(given: str) -> None:
    is_of_option = not given.startswith("-")
    assert assert_refused(shlex.split(given), is_replaced=is_of_option).fix == ADVISED[given]


def test_a_path_may_be_typed_as_in_a_shell() -> None:
    """Hydra requires quotes around `~`, `#`, `;` and others."""
    [override] = parsed(["outputs=~/out#1"])
    assert override.value() == "~/out#1"
    error = command_error(["data=image_folder", "data.dir=~/no photos;here"])
    assert error is not None
    assert error.problem.startswith("data.dir=~/no photos;here")


def test_a_setting_with_several_values_is_a_sweep_with_the_flag() -> None:
    """The suggestion is the same word with the flag, so nothing is typed twice."""
    error = command_error(["train.epochs=1,2"])
    assert error is not None
    assert shlex.split(error.fix)[:4] == ["python", "-m", "pipeline", "-m"]


@pytest.mark.parametrize("given", ["trian.epochs=3", "optimizer.lerning_rate=1", "data=mnits", "train.epoch=1"])
def test_the_nearest_name_is_listed_first(given: str) -> None:
    error = command_error([given])
    assert error is not None
    first = error.expected.removeprefix("one of: ").split(", ")[0]
    assert first in error.fix


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that a new user may have."""
    folder = tmp_path_factory.mktemp("tables")
    names = [*(f"column{place}" for place in range(15)), "density", "sale price", "2024"]
    rows = [",".join(str((row * place) % 7) for place in range(len(names))) for row in range(40)]
    text = "\n".join([",".join(names), *rows]) + "\n"
    (folder / "wide.csv").write_text(text)
    (folder / "wide16.csv").write_text(text, "utf16")
    (folder / "packed.csv").write_bytes(gzip.compress(text.encode()))
    (folder / "photo.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (folder / "odd.csv").write_bytes(text.replace("density", "\x81density").encode("latin1"))
    (folder / "semicolons.csv").write_text(text.replace(",", ";"))
    return folder


OF_TABLES = {
    "wide.csv data.target=densty": "data.target=density", "wide.csv data.target=Density": "data.target=density",
    "wide.csv data.target='Sale_Price'": "\"data.target='sale price'\"", "wide.csv": "data.target=<column>",
    "wide.csv data.target=density data.group=colum3": "data.group=column3",
    "wide.csv data.target=qq": "data.target=<column>",
    "wide.csv 'data.target=[density,qq]'": "data.target=<column>", "wide.csv data.target=2023": "data.target=2024",
    "semicolons.csv data.target=density 'data.delimiter=|'": "data.delimiter=null",
    "semicolons.csv data.target=density data.delimiter=semicolon": "data.delimiter=null",
    "wide16.csv data.target=density": "data.encoding=utf16", "photo.csv data.target=density": "",
    "wide16.csv data.target=density data.encoding=cp1252": "data.encoding=utf16",
    "odd.csv data.target=column2": "data.encoding=latin1", "nothing.csv data.target=x": "data.files=<file>",
}  # fmt: skip


@pytest.mark.parametrize("given", OF_TABLES)
def test_errors_about_a_table_use_the_names_in_it(given: str, tables: Path) -> None:
    name, *words = shlex.split(given)
    error = assert_refused(["data=table", f"data.files={tables / name}", *words])
    assert error.fix == OF_TABLES[given]


def test_a_misspelled_file_gets_its_name_as_the_suggestion(tables: Path) -> None:
    words = ["data=table", f"data.files={tables / 'packed.csv'}", "data.target=density"]
    error = command_error(words)
    assert error is not None
    command, before, after = shlex.split(error.fix)
    assert command == "mv"
    Path(before).rename(after)
    assert command_error([word.replace("packed.csv", "packed.csv.gz") for word in words]) is None


@pytest.mark.parametrize(
    "words", ["data.target=2024", "'data.target=[2024,density]'", "data.target=column1 'data.features=[2024]'"]
)
def test_a_column_may_be_named_by_a_number(words: str, tables: Path) -> None:
    assert command_error(["data=table", f"data.files={tables / 'wide.csv'}", *shlex.split(words)]) is None
