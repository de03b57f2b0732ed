"""Images by a table of paths, several labels each: killed and resumed, then asked by their files."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline import predict
from tests.pipeline.experiments import killed_and_resumed, only_folder
from tests.stages.images import write

pytestmark = pytest.mark.slow


def test_killed_and_resumed_equals_uninterrupted_and_files_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["file,red,wide"]
    for row in range(60):
        write(tmp_path / "photos" / f"{row}.png", row)
        lines.append(f"{row}.png,{row % 2},{row // 3 % 2}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    given = (
        "data=table", f"data.files={tmp_path}/labels.csv", f"data.root={tmp_path}/photos", "data.size=16",
        "data.features={file: image}", "data.target=[red,wide]", "augment=flip", "augment.mixup=0.2",
        "model=mlp", "model.network.hidden=[16]", "model.network.dropout=0.3", "strategy=mirrored", "train.epochs=40",
        "train.batch_size=16", "pipeline.inspect=null",
    )  # fmt: skip
    outputs = killed_and_resumed(given, tmp_path)
    folder = only_folder(outputs)
    tested = pq.read_table(folder / "predictions.parquet").to_pydict()
    photos = [str(tmp_path / "photos" / name) for name in tested["file"]]
    assert predict.main([str(folder), *photos, "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    given_by_files = [[answer["probabilities"][name] for name in ("red", "wide")] for answer in answers]
    np.testing.assert_allclose(given_by_files, tested["probabilities"], atol=1e-5)
