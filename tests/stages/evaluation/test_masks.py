"""Masks: their report, plots and predictions, without all targets in memory at once."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stages.data.columns import Streamed
from stages.data.split import Split
from stages.evaluate import evaluate
from stages.evaluation.predictions import NAME, read_by_example, read_columns
from stages.metrics.segmentation import COUNTS
from stages.plots.galleries import class_colors, overlaid
from stages.results import Dataset, Evaluation, Trained
from stages.settings.results import EvaluateSettings
from tests.stages.experiments import adam, after_steps, one_device, settings
from tests.stages.images import Telling
from tests.stages.networks.test_maps import areas, small_unet

TEST = 40
MOST = 16
"""Masks that may be read at once."""


def stored(split: Split) -> Split:
    """Return the split with masks that are read at each use, only some at a time."""
    masks = np.asarray(split.targets)

    def read(rows: Any) -> np.ndarray:
        assert len(masks[rows]) <= MOST, "all of the masks are read at once"
        return masks[rows]

    return replace(split, targets=Streamed(read, masks.shape, masks.dtype))


@cache
def trained() -> tuple[Dataset, Trained]:
    plain = areas(100)
    rows = np.arange(100)
    data = replace(plain, train=plain.train.take(rows[TEST:]), val=plain.val, test=plain.train.take(rows[:TEST]))
    model, _ = after_steps(
        one_device(), data, settings(batch_size=16, optimizer=adam(learning_rate=0.02)), 12, small_unet
    )
    return data, Trained(model, (), 1, 12)


def test_a_test_reports_each_class_and_is_compared_with_the_majority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.data.columns.CHUNK_BYTES", 12 * 10 * MOST)
    data, model = trained()
    on_disk, told = data.with_each_split(stored), Telling()
    found = evaluate(model, on_disk, one_device(), EvaluateSettings(batch_size=MOST, mistakes=5), tmp_path, told)
    again = evaluate(model, data, one_device(), EvaluateSettings(batch_size=MOST), None, Telling())
    assert found.record.metrics == again.record.metrics, "masks in memory give the same"
    masks, weights = np.asarray(data.test.targets), data.test.weights
    assert weights is not None
    columns = read_columns(tmp_path / NAME)
    assert {*columns} == {*COUNTS, "weight"}
    np.testing.assert_array_equal(columns["pixels"][:, 1], (masks == 1).sum(axis=(1, 2)))
    true, predicted, both = (weights @ columns[name] for name in COUNTS)
    ious = both / (true + predicted - both)
    metrics = found.record.metrics
    assert metrics["test/mean_iou"] == pytest.approx(ious.mean())
    assert metrics["test/mean_iou_low"] < ious.mean() < metrics["test/mean_iou_high"]
    assert {"test/dice", "test/pixel_accuracy", "trivial/mean_iou"} <= metrics.keys()
    share = true[0] / true.sum()
    assert metrics["trivial/mean_iou"] == pytest.approx(share / 3)
    assert 0.4 < ious.mean() < 1
    [verdict] = found.record.summary["verdicts"]
    assert verdict.startswith('the network beats the majority-class baseline (always "ground", ')
    assert "% of the pixels of 60 training examples): mean_iou 0." in verdict
    assert "IoU of each class" in told.lines
    rows = (tmp_path / "test_by_class.csv").read_text().splitlines()
    assert rows[0] == "class,iou,low,high,dice,pixels,predicted pixels"
    assert float(rows[2].split(",")[1]) == pytest.approx(ious[1])
    assert [path.name for path in found.record.files["plots"]] == ["iou.png", "worst.png"]
    assert Image.open(tmp_path / "plots" / "worst.png").width > 500


def test_a_later_run_is_compared_image_by_image(tmp_path: Path) -> None:
    data, model = trained()
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()

    def run(model: Trained, folder: Path, **given: Any) -> Evaluation:
        return evaluate(model, data, one_device(), EvaluateSettings(**given), folder, Telling())

    fresh = Trained(small_unet(data, one_device()), (), 1, 0)
    run(model, first)
    found = run(fresh, second, against=str(first))
    sentence = found.record.summary["verdicts"][-1]
    assert sentence.startswith("this network is worse than the run first: mean_iou −0.")
    assert sentence.endswith(f" on {TEST} test examples")
    metric, values = read_by_example(first / NAME)
    assert metric.name == "mean_iou"
    assert values.shape == (TEST,)


def test_an_overlay_has_the_colors_of_the_classes() -> None:
    assert class_colors()[[0, 1, 2, 3]].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
    assert len({tuple(color) for color in class_colors().tolist()}) == 256
    image = np.full((1, 1, 3, 1), 100, np.uint8)
    shown = overlaid(image, np.array([[[0, 1, 255]]]), (0.0, 255.0), 255)
    assert shown[0, 0].tolist() == [[50, 50, 50], [114, 50, 50], [100, 100, 100]]
