"""Windows of later data have the channels of the training by their names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.declared import declared_by
from stages.errors import UserError
from stages.normalize import normalize
from stages.results import Dataset
from tests.stages.series import demand, encoded, windows
from tests.stages.training import test_series_classes as classes


def restored(trained: Dataset, other: Dataset, folder: Path, cache: Path | None = None) -> Dataset:
    """Return a data set as a run prepares it that starts from the model of another run."""
    declared: Any = declared_by(normalize)
    folder.mkdir()
    declared.save(trained, folder)
    found: Dataset = declared.restore(folder, other, None, cache)
    return found


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_reordered_columns_are_used_by_their_names(is_on_disk: bool, tmp_path: Path) -> None:
    """To the bit; further columns are not used."""
    frame = demand()
    trained = encoded(tmp_path, frame, known=["promo"])
    other = frame.assign(other=np.arange(len(frame)) * 0.5)[["other", "promo", "price", "sales", "store", "date"]]
    where: dict[str, Any] = {"cache": tmp_path / "cache", "memory_gib": 0.0} if is_on_disk else {}
    data = windows(tmp_path, other, known=["promo"], **where)
    assert data.features["history"].channels == ("sales", "other", "price")  # type: ignore[attr-defined]
    found = restored(trained, data, tmp_path / "saved", where.get("cache"))
    for name, split in trained.splits.items():
        for key, column in split.inputs.items():
            np.testing.assert_array_equal(found.splits[name].inputs[key][:], column[:], err_msg=key)
    assert found.train.is_in_memory != is_on_disk


def test_missing_columns_and_other_windows_are_refused(tmp_path: Path) -> None:
    frame = demand()
    trained = encoded(tmp_path, frame)
    with pytest.raises(UserError, match=r"no column price that can be used.*sales, price, promo, in any order"):
        restored(trained, windows(tmp_path, frame.drop(columns="price")), tmp_path / "saved")
    with pytest.raises(UserError, match="windows of 10 steps, unlike the 14 in training"):
        restored(trained, windows(tmp_path, frame, window=10), tmp_path / "other")


def test_later_rows_may_lack_a_class(tmp_path: Path) -> None:
    frame = classes.machines()
    trained = classes.encoded(tmp_path, frame)
    rows: pd.DataFrame = frame.assign(state=frame.state.replace("hot", "good"))
    data = classes.loaded(tmp_path, rows)
    assert data.task.names == ("cold", "good")
    found = restored(trained, data, tmp_path / "saved")
    assert found.task.names == ("cold", "good", "hot")
    assert found.task.view == trained.task.view
    history = found.test.features["history"][:]
    assert history.shape[2] == 4
    assert not history[:, :, 2].any()
    np.testing.assert_array_equal(history[:, :, 3], data.test.features["history"][:][:, :, 2])
    assert replace(found.task.targets, names=()) == replace(trained.task.targets, names=())
