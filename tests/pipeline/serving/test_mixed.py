"""Models of images among other columns: `predict` reads the images that a table names, requests have them in base64."""

import base64
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.commands import predict
from pipeline.serving import models
from pipeline.serving.rows import arguments_of
from pipeline.serving.server import build_app
from stages.data.examples import first_inputs
from stages.exporters.saved_model import SavedModel
from stages.normalize import normalize
from stages.settings.data import NormalizeSettings
from stages.settings.model import CnnSettings, MlpSettings
from tests.pipeline.experiments import Printed, write_run
from tests.stages.experiments import built_of, one_device
from tests.stages.mixed_tables import TWO_IMAGES, load, write_table

ROWS = 80
NEW = 5


class Exported(NamedTuple):
    """A run with a model, new rows, and what the network predicts for these."""

    run: Path
    homes: Path
    expected: np.ndarray


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    homes = tmp_path_factory.mktemp("homes")
    frame = write_table(homes, ROWS)
    dataset = normalize(load(homes, {**TWO_IMAGES, "note": "text"}), NormalizeSettings())
    encoders = dict.fromkeys(TWO_IMAGES, CnnSettings(filters=[4]))
    model = built_of(MlpSettings(hidden=[8]), dataset, one_device(), encoders=encoders, encoder_width=4)
    run = write_run(tmp_path_factory.mktemp("runs") / "runs" / "day" / "mixed")
    SavedModel().write(model, dataset, run / "export" / "saved_model")
    numbers = np.asarray(dataset.test.numbers)[:NEW]
    frame.iloc[numbers].drop(columns="price").to_csv(homes / "photos" / "new.csv", index=False)
    outputs = model.network(first_inputs(dataset.test, NEW), training=False)
    return Exported(run, homes, model.task.head.predictions(outputs).numpy())


def test_predict_reads_the_images_that_a_table_names(exported: Exported, tmp_path: Path) -> None:
    """Below the folder of the table, or `--root`, in any format."""
    photos = exported.homes / "photos"
    output = tmp_path / "predicted.parquet"
    assert predict.main([str(exported.run), str(photos / "new.csv"), "-o", str(output)]) == 0
    found = pq.read_table(output)["prediction"].to_numpy()
    np.testing.assert_allclose(found, exported.expected[:, 0], rtol=1e-6)
    frame = pd.read_csv(photos / "new.csv")
    Image.open(photos / frame.front[0]).save(photos / "front" / "other.bmp")
    frame.loc[0, "front"] = "front/other.bmp"
    frame.to_csv(tmp_path / "other.csv", index=False)
    words = [str(exported.run), str(tmp_path / "other.csv"), "--root", str(photos), "-o", str(output)]
    assert predict.main(words) == 0
    np.testing.assert_array_equal(pq.read_table(output)["prediction"].to_numpy(), found)


@pytest.mark.parametrize(("value", "why"), [
    ("gone.png", "new.csv row 3, column front: 'gone.png': No such file or directory"),
    ("new.csv", "new.csv row 3, column front: 'new.csv': the file is not one of"), ("", "the value is missing"),
])  # fmt: skip
def test_an_unreadable_image_is_named(
    exported: Exported, value: str, why: str, tmp_path: Path, capsys: Printed
) -> None:
    frame = pd.read_csv(exported.homes / "photos" / "new.csv")
    frame.loc[2, "front"] = value
    frame.to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "front").symlink_to(exported.homes / "photos" / "front")
    (tmp_path / "back").symlink_to(exported.homes / "photos" / "back")
    assert predict.main([str(exported.run), str(tmp_path / "new.csv")]) == 2
    assert why in capsys.readouterr().err


def test_requests_have_images_in_base64(exported: Exported) -> None:
    folder = exported.run / "export" / "saved_model"
    loaded = models.load(folder)
    frame = pd.read_csv(exported.homes / "photos" / "new.csv", keep_default_na=False)
    given: dict[str, Any] = {name: frame[name].tolist() for name in ("size", "town", "note")}
    for name in TWO_IMAGES:
        contents = [(exported.homes / "photos" / path).read_bytes() for path in frame[name]]
        given[name] = [base64.b64encode(content).decode() for content in contents]
    settings, drift = models.reading_settings(loaded), models.drift_of(loaded)
    columns = models.prediction_columns(loaded, arguments_of(loaded, settings, drift, given))
    np.testing.assert_allclose(columns["prediction"].to_numpy(), exported.expected[:, 0], rtol=1e-6)
    given["back"][1] = "no base64!"
    with pytest.raises(Exception, match="the table row 2, column back: 'no base64!': expected an image in base64"):
        arguments_of(loaded, settings, drift, given)
    given["back"][1] = base64.b64encode(b"no image").decode()
    with pytest.raises(Exception, match=r"row 2, column back: .* the file is not one of"):
        arguments_of(loaded, settings, drift, given)
    assert not any(route.path == "/images" for route in build_app(folder).routes)


def test_drift_is_counted_for_encoded_images(exported: Exported) -> None:
    loaded = models.load(exported.run / "export" / "saved_model")
    settings = models.reading_settings(loaded, [exported.homes / "photos" / "new.csv"])
    drift = models.drift_of(loaded)
    list(models.predictions(loaded, settings, drift))
    assert {name: int(counts.sum()) for name, counts in drift._counts.items()} == dict.fromkeys(
        ["size", "town", "note", "front", "back"], NEW
    )
