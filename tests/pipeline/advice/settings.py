"""Advice of settings, of sources of data and of encoders."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stages.augment import augment
from stages.data.loading import Invalid, _refuse, _refuse_black_and_white
from stages.data.splits import cut_all
from stages.errors import UserError
from stages.features.encoder import learn_encoder
from stages.features.texts import learn_tokens
from stages.load.arrays import arrays
from stages.load.folders import image_folder, read_text
from stages.load.series import series
from stages.load.synthetic import synthetic
from stages.load.table import table
from stages.load.tfds import _files, _key, _prepared, _refuse_repeated
from stages.normalize import normalize
from stages.reporter import Reporter
from stages.settings.data import AugmentSettings, NormalizeSettings, TfdsSettings
from stages.storage.cache import cached
from tests.pipeline.advice import Case
from tests.pipeline.experiments import experiment, write_files

FOLDER = "data=image_folder data.dir=images"

TABLE = "data=table data.files=t.csv data.target=y"

TEXTS = "data=text_folder data.dir=texts"

TFDS = "data=tfds data.name=made data.dir=."

MADE: Any = SimpleNamespace(name="made", full_name="made/1.0.0", splits={"train": None}, features={})
"""The metadata of a TFDS data set with one split."""


def _refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> UserError:
    """Return the error that a call raises."""
    with pytest.raises(UserError) as raised:
        call(*arguments, **named)
    return raised.value


def _folders(suffix: str, root: str) -> None:
    write_files(Path(root), {f"{name}/{number}{suffix}": "" for name in "ab" for number in range(9)})


def _csv(text: str, words: str = "") -> Case:
    """Return the case of a command with the table `t.csv`."""

    def case(folder: Path) -> str:
        write_files(folder, {"t.csv": text})
        return f"{TABLE} {words}".strip()

    return case


def _loaded(text: str, words: str = "", given: str = TABLE) -> Case:
    """Return the case of a table whose settings are right and whose rows are not."""

    def case(folder: Path) -> tuple[UserError, str]:
        write_files(folder, {"t.csv": text})
        command = f"{given} {words}".strip()
        return _refusal(table, experiment(*command.split()).settings["load"]), command

    return case


def _rows(header: str, *values: str) -> str:
    """Return a table of forty rows, in which `values` take turns."""
    return "\n".join([header, *(values[number % len(values)].replace("#", str(number)) for number in range(40))]) + "\n"


def _no_images(folder: Path) -> tuple[UserError, str]:
    write_files(folder, {"t.csv": _rows("x,y", "#.5,a", "#.5,b")})
    dataset = table(experiment(*TABLE.split()).settings["load"])
    return _refusal(augment, dataset, AugmentSettings(mixup=0.2)), f"{TABLE} augment.mixup=0.2"


def _broken_image(folder: Path) -> tuple[UserError, str]:
    _folders(".png", "images")
    return _refusal(_refuse, [Invalid("a/0.png", "it is empty")], "fail", 18), FOLDER


def _no_room(folder: Path) -> tuple[UserError, str]:
    _folders(".png", "images")
    command = f"{FOLDER} data.cache=off data.memory_gib=0"
    return _refusal(image_folder, experiment(*command.split()).settings["load"]), command


def _rare_class(folder: Path) -> tuple[UserError, str]:
    return _refusal(cut_all, np.array([0, 0, 0, 1]), {"test": 0.5, "val": 0.5}, 0), "data=digits"


def _two_texts(folder: Path) -> tuple[UserError, str]:
    rows = _rows("s,t,y", "some words #,other words #,a", "many words #,few words #,b")
    write_files(folder, {"t.csv": rows})
    command = f"{TABLE} ++data.features={{s:text,t:text}}"
    dataset = table(experiment(*command.split()).settings["load"])
    error = _refusal(learn_encoder, dataset, NormalizeSettings(tokenizer="conf"), None, Reporter())
    return error, f"{command} model=transformer"


def _no_tokenizer(folder: Path) -> tuple[UserError, str]:
    _folders(".txt", "texts")
    return _refusal(learn_tokens, np.array(["a text"], object), str(folder)), TEXTS


def _unknown_encoding(folder: Path) -> tuple[UserError, str]:
    _folders(".txt", "texts")
    return _refusal(read_text, Path("texts/a/0.txt"), "utf9"), f"{TEXTS} data.encoding=utf9"


def _made(folder: Path) -> None:
    write_files(folder, {"made/1.0.0/dataset_info.json": "{}"})


def _no_split(folder: Path) -> tuple[UserError, str]:
    _made(folder)
    return _refusal(_files, MADE, "val", "nope"), f"{TFDS} data.val_split=nope"


def _no_feature(folder: Path) -> tuple[UserError, str]:
    _made(folder)
    info = SimpleNamespace(**vars(MADE), supervised_keys=None)
    error = _refusal(_key, info, "label", "nope", ["kind"], ["kind"], "a class to predict")
    return error, f"{TFDS} data.label_key=nope"


def _not_one_configuration(folder: Path) -> tuple[UserError, str]:
    write_files(folder, {f"made/{name}/1.0.0/dataset_info.json": "{}" for name in ("big", "small")})
    return _refusal(_prepared, TfdsSettings(name="made", dir=".")), TFDS


def _shared_examples(folder: Path) -> tuple[UserError, str]:
    _made(folder)
    part = SimpleNamespace(filename="made.tfrecord", skip=0, take=10)
    return _refusal(_refuse_repeated, [part, part]), f"{TFDS} data.val_split=train"


def _four_channels(folder: Path) -> tuple[UserError, str]:
    words = "data=synthetic data.channels=4 data.height=8 data.width=8 data.examples=40 data.num_classes=2"
    dataset = synthetic(experiment(*words.split()).settings["load"])
    return _refusal(normalize, dataset, NormalizeSettings(method="imagenet")), f"{words} normalize=imagenet"


def _unlike_names(folder: Path) -> str:
    np.savez("a.npz", pixels=np.zeros((40, 2)), kind=np.arange(40) % 2)
    return "data=arrays data.files=a.npz"


def _several_sizes(folder: Path) -> tuple[UserError, str]:
    _folders(".png", "images")
    command = f"{FOLDER} data.size=null"
    return _refusal(experiment(*command.split()).settings["load"].shape, (None, None, 3)), command


def _in_latin1(folder: Path) -> str:
    Path("t.csv").write_bytes(_rows("größe,y", "#.5,a", "#.5,b").encode("latin1"))
    return TABLE


def _folder_above(folder: Path) -> str:
    _folders(".png", "images/all")
    return FOLDER


def _beside_splits(folder: Path) -> str:
    _folders(".png", "images/train")
    Path("images/notes").mkdir()
    return FOLDER


def _folder_of_tables(folder: Path) -> str:
    write_files(folder, {"tables/t.csv": _rows("x,y", "#.5,a", "#.5,b")})
    return "data=table data.target=y data.files=tables"


def _few_examples(folder: Path) -> tuple[UserError, str]:
    train = replace(experiment().settings["train"], batch_size=2)
    return _refusal(train.check_share, 4), "strategy=mirrored train.batch_size=2"


def _no_folder(folder: Path) -> tuple[UserError, str]:
    write_files(folder, {"taken": "a file"})
    return _refusal(cached, folder / "taken" / "entry", dict, Reporter()), "outputs=taken"


MASKS = "data=image_folder data.dir=photos data.masks=masks model=unet"


def _photos(folder: Path) -> None:
    names = [f"{place}/{number}.png" for place in ("photos", "masks") for number in range(9)]
    write_files(folder, dict.fromkeys(names, ""))


def _one_class(folder: Path) -> str:
    _photos(folder)
    return f"{MASKS} data.classes=[object]"


def _black_and_white(folder: Path) -> tuple[UserError, str]:
    _photos(folder)
    values = np.isin(np.arange(256), (0, 255))
    source: Any = SimpleNamespace(name="photos", masks=SimpleNamespace(classes={}))
    return _refusal(_refuse_black_and_white, source, values), MASKS


PHOTOS = _rows("x,y,z", "#.png,a,#.5", "#.png,b,#.5")
WITH_PHOTOS = "'++data.features={x: image}'"
"""Images next to a number."""

SERIES = "data=series data.files=t.csv data.target=y data.time=day"


def _days(words: str, *left_out: int, copies: int = 1) -> Case:
    """Return the case of a command with a table of 56 days, some left out, or each several times."""

    def case(folder: Path) -> str:
        rows = [f"{np.datetime64('2024-01-01') + day},{day}.5" for day in range(56) if day not in left_out]
        write_files(folder, {"t.csv": "\n".join(["day,y", *rows * copies]) + "\n"})
        return f"{SERIES} {words}"

    return case


def _square(folder: Path) -> tuple[UserError, str]:
    np.savez(folder / "a.npz", x=np.ones((40, 8, 8)), y=np.arange(40) % 2)
    command = "data=arrays data.files=a.npz"
    return _refusal(arrays, experiment(*command.split()).settings["load"]), command


def _untimed(folder: Path) -> str:
    write_files(folder, {"t.csv": _rows("day,y", "#,#.5", "#,#.25")})
    return "data=series data.files=t.csv data.target=y data.window=2"


def _two_classes(folder: Path) -> tuple[UserError, str]:
    write_files(folder, {"t.csv": _rows("day,y,z,x", "#,a,b,#.5", "#,b,a,#.25")})
    command = "data=series data.files=t.csv data.time=day data.window=2 task=classification data.target=[y,z]"
    return _refusal(series, experiment(*command.split()).settings["load"]), command


CASES: dict[str, Case] = {
    "stages/data/series.py:timeline": _days("data.window=2", 5),
    "stages/data/series.py:windows_of": _days("data.window=20"),
    "stages/load/arrays.py:_refuse_others": _square,
    "stages/load/series.py:of": _two_classes,
    "stages/settings/series.py:check": _untimed,
    "stages/settings/series.py:check_columns": _days("data.window=2 data.season=3"),
    "stages/settings/train.py:_check_quantiles": _days("data.window=2 task=forecast 'task.quantiles=[0.1,0.9]'"),
    "pipeline/checks/data_fits.py:_check_forecast": _days("data.window=2 task=regression"),
    "pipeline/checks/data_fits.py:_check_augment": _csv(PHOTOS, f"{WITH_PHOTOS} augment.mixup=0.2"),
    "pipeline/checks/data_fits.py:_check_encoders": _csv(PHOTOS, f"{WITH_PHOTOS} model=cnn"),
    "stages/augment.py:augment": _no_images,
    "stages/data/loading.py:_refuse": _broken_image,
    "stages/data/loading.py:_refuse_black_and_white": _black_and_white,
    "stages/data/loading.py:read_images": _no_room,
    "stages/data/profiles.py:_refuse_other_dates": _loaded(
        "x,y\n" + "".join(f"2024-01-{day},{day % 2}\n2024-02-{day},{day % 2}\n" for day in range(10, 29)) + 9 * "?,1\n"
    ),
    "stages/data/profiles.py:date_format_of": _loaded(_rows("x,y", "03/04/2024,a", "05/06/2024,b")),
    "stages/data/profiles.py:refuse_texts": _loaded(_rows("x,y", "#.5,a", "#.5,b") + 4 * "unknown,a\n"),
    "stages/data/splits.py:cut_all": _rare_class,
    "stages/data/tables.py:read": _loaded(_rows("x,y", "#.5,a", "#.5,b") + "0.5,\n"),
    "stages/data/tables.py:read_files": _loaded(_rows("x,y", "#.5,a", "#.5,b") + "0.5,a,more\n"),
    "stages/features/encoder.py:learn_encoder": _two_texts,
    "stages/features/texts.py:learn_tokens": _no_tokenizer,
    "stages/load/folders.py:read_text": _unknown_encoding,
    "stages/load/table.py:_mixed_targets": _loaded(_rows("x,y,z", "#.5,a,#.5", "#.5,b,#.5"), "data.target=[y,z]"),
    "stages/load/table.py:_refuse_few": _loaded(_rows("x,y", "#.5,1.0", "#.5,2.0", "#.5,3.0")),
    "stages/load/table.py:_refuse_shared": _loaded(
        _rows("x,y,s,g", "#.5,a,train,1", "#.5,b,train,2", "#.5,a,test,1", "#.5,b,test,1"),
        "data.split_column=s data.group=g",
    ),
    "stages/load/table.py:_task": _loaded(_rows("x,y,z", "#.5,0,1", "#.5,1,0"), "data.target=[y,z]"),
    "stages/load/tfds.py:_files": _no_split,
    "stages/load/tfds.py:_key": _no_feature,
    "stages/load/tfds.py:_prepared": _not_one_configuration,
    "stages/load/tfds.py:_refuse_repeated": _shared_examples,
    "stages/normalize.py:_scaling_of": _four_channels,
    "stages/settings/arrays.py:check": "data=arrays",
    "stages/settings/arrays.py:parts": _unlike_names,
    "stages/settings/data.py:check": "data=image_folder",
    "stages/settings/data.py:refuse_missing": _csv(_rows("x,kind", "#.5,a", "#.5,b"), "data.target=kinds"),
    "stages/settings/data.py:shape": _several_sizes,
    "stages/settings/date_formats.py:check_dates": _csv(_rows("x,y", "#.5,a", "#.5,b"), "data.date_format=%q"),
    "stages/settings/encodings.py:not_in_encoding": _in_latin1,
    "stages/settings/first_rows.py:_check_values": _csv(
        _rows("x,y,z", "#.5,0,1", "#.5,1,1", "#.5,0,0"), "data.target=[y,z] task=classification"
    ),
    "stages/settings/folders.py:check_classes": _one_class,
    "stages/settings/folders.py:class_names": _folder_above,
    "stages/settings/folders.py:split_folders": _beside_splits,
    "stages/settings/headers.py:names_in": _csv(_rows("x,y", "#.5,a", "#.5,b"), "data.encoding=utf9"),
    "stages/settings/model.py:_check_weights": "model.weights=/nope",
    "stages/settings/model.py:encoder_settings": _csv(PHOTOS, f"{WITH_PHOTOS} model.encoders.x=cnn_foto"),
    "stages/settings/model.py:check": "'precision.layers={conv2d*: float64}'",
    "stages/settings/ranges.py:_check_number": "train.epochs=0",
    "stages/settings/ranges.py:check": "train.jit=yes",
    "stages/settings/ranges.py:wrong_type": "train.epochs=2.0",
    "stages/settings/results.py:check": "+export.formats.own=5",
    "stages/settings/image_sizes.py:check_sizes": _csv(
        _rows("x,y", "#.png,a", "#.png,b"), "data.features={x:image} data.size={z:96}"
    ),
    "stages/settings/table.py:check_files_and_target": "data=table",
    "stages/settings/table.py:_check_images": _csv(
        PHOTOS, "'++data.features={x: image, z: number}' data.only_images=true"
    ),
    "stages/settings/table.py:_check_splits": _csv(
        _rows("x,y", "#.5,a", "#.5,b"), "'data.files={train: t.csv}' data.split_column=x"
    ),
    "stages/settings/table.py:check": _csv(_rows("x,y", "#.5,a", "#.5,b"), "data.delimiter=ab"),
    "stages/settings/table_files.py:files_of": _folder_of_tables,
    "stages/settings/train.py:check": "train.class_weights=auto",
    "stages/settings/train.py:check_share": _few_examples,
    "stages/storage/cache.py:cached": _no_folder,
    "stages/targets.py:imported": "optimizer=custom optimizer._target_=keras.optimizers.Lionn",
}

UNREACHED: dict[str, str] = {
    "stages/load/arrays.py:_named": "code for the reader's own function",
}
"""Places whose advice cannot be typed, or which a small test cannot reach, with the reason."""
