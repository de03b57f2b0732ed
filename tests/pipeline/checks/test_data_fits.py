"""Data that does not fit the network, the task or the augmentation is refused before TensorFlow is imported."""

import itertools
import random
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.checks.registry import check_rules
from stages.errors import UserError
from stages.load.table import table
from stages.settings import first_rows
from stages.settings.first_rows import check_target
from stages.settings.table import TableSettings
from stages.settings.train import ClassificationSettings, MultiLabelSettings, RegressionSettings, TaskSettings
from stages.tasks.chosen import chosen_task
from tests.pipeline.experiments import experiment
from tests.stages.images import folder_of

ROWS = {
    "classes": ["cat", "dog", "cow"] * 20, "numbers": [str(value / 7) for value in range(60)], "one": ["cat"] * 60,
    "constant": ["3.5"] * 60, "empty": [""] * 60, "each": [f"c{number}" for number in range(60)], "none": [],
    "labels": ["0", "1", "1"] * 20, "yes": ["yes"] * 60, "two": ["1.5", "2.5"],
}  # fmt: skip
"""Target columns of small tables, by the tables' names."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, values in ROWS.items():
        frame = pd.DataFrame({"a": np.arange(len(values)) % 7 + 0.5, "b": np.arange(len(values)) % 2, "y": values})
        frame.to_csv(folder / f"{name}.csv", index=False)
    np.savez(folder / "rows.npz", x=np.zeros((9, 3)), y=np.arange(9))
    np.savez(folder / "pixels.npz", x=np.zeros((9, 8, 8, 3), np.uint8), y=np.arange(9))
    folder_of(folder / "images", classes=3, examples=1)
    folder_of(folder / "alone", examples=1)
    next((folder / "alone" / "class 1").iterdir()).unlink()
    for number in range(2):
        (folder / "texts" / f"c{number}").mkdir(parents=True)
        (folder / "texts" / f"c{number}" / "1.txt").write_text("some words")
    return folder


TABLE, IMAGES, TEXTS = (
    "data=table data.target=y data.files=",
    "data=image_folder data.dir=",
    "data=text_folder data.dir=",
)


@pytest.mark.parametrize(("command", "message"), [
    (f"{TABLE}classes.csv model=cnn", "model=cnn requires images, but data=table has none"),
    (f"{TABLE}classes.csv model=efficientnet_v2_b0", "requires images, but data=table has none"),
    (f"{TABLE}classes.csv model=text_cnn", "model=text_cnn requires texts, but data=table has none"),
    (f"{TEXTS}texts model=resnet20", "model=resnet20 requires images, but data=text_folder has none"),
    (f"{IMAGES}images model=transformer", "model=transformer requires texts, but data=image_folder has none"),
    ("data=arrays data.files=rows.npz model=cnn", "model=cnn requires images, but data=arrays has none"),
    ("data=arrays data.files=rows.npz augment=flip", "augment requires images, but data=arrays has none"),
    ("data=arrays data.files=pixels.npz model=transformer", "requires texts, but data=arrays has none"),
    ("model=text_cnn", "model=text_cnn requires texts, but data=digits has none"),
    (f"{TABLE}classes.csv augment=flip", "augment requires images, but data=table has none"),
    (f"{TABLE}classes.csv augment=flip augment.mixup=0.2 augment.crop=0.1", "augment requires images"),
    (f"{TEXTS}texts augment.rotation=0.1", "augment requires images, but data=text_folder has none"),
    (f"{TABLE}classes.csv normalize.tokenizer=.", "normalize.tokenizer requires texts, but data=table has none"),
    (f"{TABLE}classes.csv task=regression", "task=regression needs numbers, but y has 'cat'"),
    (f"{TABLE}one.csv", "data.target=y is cat in all rows"),
    (f"{TABLE}constant.csv", "data.target=y is 3.5 in all rows"),
    (f"{TABLE}constant.csv task=regression", "data.target=y is 3.5 in all rows"),
    (f"{TABLE}yes.csv task=multi_label", "data.target=y is yes in all rows"),
    (f"{TABLE}empty.csv", "data.target=y has no values"),
    (f"{TABLE}none.csv", "data.files has no rows"),
    (f"{TABLE}two.csv", "data.files has only 2 rows"),
    (f"{TABLE}each.csv", "60 of 60 classes of y have only 1 example, such as c59"),
    (f"{TABLE}numbers.csv task=multi_label", "task=multi_label needs labels of 0 and 1, but y has '0.14"),
    (f"{TABLE}classes.csv task=classification data.target=[a,b]", "needs one target, but data.target has 2"),
    ("data=table data.target=y 'data.files={train: classes.csv, test: none.csv}'", "has no test rows"),
    ("task=regression", "task=regression does not fit data=digits, whose target is one of 10"),
    ("data=synthetic task=multi_label", "does not fit data=synthetic, whose target is one of 10 classes"),
    (f"{TEXTS}texts task=regression", "does not fit data=text_folder, whose target is one of 2 classes"),
    (f"{IMAGES}images task.single_logit=true", "requires 2 classes, but data=image_folder has 3"),
    (f"{IMAGES}images task=segmentation", "task=segmentation does not fit data=image_folder, whose target is one of 3"),
    ("data=arrays data.files=pixels.npz task=segmentation model=cnn", "model=cnn does not return masks, which"),
    (f"{IMAGES}alone", "only the class class 0 has training examples"),
    (f"{IMAGES}texts", "has no files that end in .jpg"),
    (f"{TEXTS}images", r"has no files that end in \.txt"),
])  # fmt: skip
def test_data_that_does_not_fit_is_refused(command: str, message: str, place: Path) -> None:
    error = refused(command, place)
    assert error is not None
    assert re.search(message, str(error)), error
    assert str(error).isprintable()
    if error.fix:
        after = refused(command, place, shlex.split(error.fix))
        assert after is None or after.problem.split(":")[0] != error.problem.split(":")[0]


def refused(command: str, place: Path, more: Sequence[str] = ()) -> UserError | None:
    """Return the error of an experiment in the folder `place`; None if it is accepted."""
    words = shlex.split(re.sub(r"(files=|dir=|: )(?=[a-z]*(\.csv|\.npz|images|texts|alone))", rf"\1{place}/", command))
    try:
        check_rules(experiment(*words, *more), surroundings=False)
    except UserError as error:
        return error
    return None


@pytest.mark.parametrize("command", [
    f"{TABLE}classes.csv", f"{TABLE}numbers.csv", f"{TABLE}labels.csv task=multi_label",
    f"{TABLE}classes.csv data.features={{a:text}} model=text_cnn", f"{IMAGES}images augment=flip", f"{TEXTS}texts",
    "data=arrays data.files=pixels.npz model=cnn augment=flip",
    "data=synthetic data.num_classes=2 task.single_logit=true",
    "data=arrays data.files=pixels.npz task=segmentation model=mobilenet_v2",
])  # fmt: skip
def test_data_that_fits_is_accepted(command: str, place: Path) -> None:
    assert refused(command, place) is None


def test_a_trained_model_accepts_a_table_with_one_class(place: Path) -> None:
    assert refused(f"{TABLE}one.csv from=evaluate run=abcdef12", place) is None


TASKS: tuple[TaskSettings, ...] = (
    TaskSettings(), ClassificationSettings(), RegressionSettings(), MultiLabelSettings()
)  # fmt: skip
VALUES = ("1", "0", "2.5", "cat", "dog", "", "NA", "1,5", "yes", "3 kg", " cat", "1e3", "-", "$3", "True")


def loaded(settings: TableSettings, task: TaskSettings) -> None:
    dataset = table(settings)
    chosen_task(dataset.task, task, dataset.train.target_values)


def test_only_tables_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    """For random tables: if `check_target` refuses one, loading refuses it as well."""
    draw = random.Random(0)
    count = 0
    for number, (task, on_error) in enumerate(itertools.product(TASKS * 25, ("fail", "skip"))):
        chosen = draw.sample(VALUES, draw.choice((1, 2, 2, 3)))
        rows = [f'{row % 5},"{draw.choice(chosen)}"' for row in range(draw.choice((1, 2, 3, 8, 40)))]
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["a,y", *rows, ""]))
        settings = TableSettings(files=str(path), target="y", task=task, on_error=on_error)
        try:
            check_target(settings)
        except UserError:
            count += 1
            with pytest.raises(UserError):
                loaded(settings, task)
    assert count > 50


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "feather"])
def test_the_first_rows_are_those_of_the_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rows, "ROWS", 20)
    frame = pd.DataFrame({"a b": range(25), "y": ["cat"] * 20 + ["dog"] * 5})
    path = tmp_path / f"t.{kind}"
    {"parquet": frame.to_parquet, "feather": frame.to_feather}.get(kind, lambda to: frame.to_csv(to, index=False))(path)
    settings = TableSettings(files=str(path), target="y")
    rows = first_rows.first_rows([path], settings)
    assert (list(rows.values["y"]), rows.are_all) == (["cat"] * 20, False)
    check_target(settings)  # the rows that follow may be different
    monkeypatch.setattr(first_rows, "ROWS", 30)
    first_rows._first_rows.cache_clear()
    assert list(first_rows.first_rows([path], settings).values["y"]) == list(frame["y"])
    assert first_rows.first_rows([path], settings).are_all


MIXED = "data=table data.files=mixed.csv data.target=y 'data.features={photo: image, note: text}'"


@pytest.mark.parametrize(("words", "message"), [
    ("model=cnn_photo", "model=cnn_photo takes one image and nothing else, but the table has other columns, too"),
    ("model=mobilenet_v2 model.frozen=true", "model=mobilenet_v2 takes one image and nothing else"),
    ("augment.mixup=0.2", "augment.mixup and augment.cutmix do not support images among other columns"),
    ("model.encoders.size=cnn", "model.encoders.size: the column size is not declared as an image or a text"),
    ("model.encoders.phot=cnn", "model.encoders.phot: there is no column phot"),
    ("model.encoders.photo=cnn_fotos", "model.encoders.photo=cnn_fotos is not a network"),
    ("model.encoders.photo=unet", "model.encoders.photo=unet is not a network"),
    ("'model.encoders.photo={filters: [4]}'", "is not a network"),
    ("'model.encoders.photo={_target_: stages.networks.cnn.cnn, filter: [4]}'", "does not fit stages.networks.cnn.cnn"),
    ("'model.encoders.photo={_target_: stages.networks.cnn.cnn, filters: [0]}'", "filters[0]=0 is out of range"),
    ("'model.encoders.photo={_target_: stages.networks.unet.unet}'", "unet.unet does not return a vector"),
    ("model.encoder_width=0", "model.encoder_width=0 is out of range"),
    ("data.only_images=true", "declares note, but data.only_images=true uses nothing but photo"),
])  # fmt: skip
def test_images_among_columns_are_refused_where_they_do_not_fit(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{row}.png,some words {row},{row / 7},{'ab'[row % 2]}" for row in range(60)]
    (tmp_path / "mixed.csv").write_text("\n".join(["photo,note,size,y", *rows]))
    with pytest.raises(UserError, match=re.escape(message)):
        check_rules(experiment(*shlex.split(f"{MIXED} {words}")))


@pytest.mark.parametrize("words", [
    "", "model=mlp model.encoders.photo=cnn", "model.encoders.note=text_cnn model.encoder_width=16 augment=flip",
    "'model.encoders.photo={_target_: stages.networks.applications.application, name: VGG16}' model.frozen=true",
    "'data.features={photo: image, note: leave_out, size: leave_out}' model=cnn augment.mixup=0.2",
    "'data.features={photo: image}' data.only_images=true model=cnn augment.mixup=0.2",
])  # fmt: skip
def test_images_among_columns_are_accepted_where_they_fit(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{row}.png,some words {row},{row / 7},{'ab'[row % 2]}" for row in range(60)]
    (tmp_path / "mixed.csv").write_text("\n".join(["photo,note,size,y", *rows]))
    given = MIXED.partition(" 'data.features")[0] if "data.features" in words else MIXED
    check_rules(experiment(*shlex.split(f"{given} {words}")))
