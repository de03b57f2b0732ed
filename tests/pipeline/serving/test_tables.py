"""`python -m pipeline predict` predicts for every row of a table, in order, from the columns that the model needs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipeline.commands import predict
from pipeline.serving.models import reading_settings
from pipeline.serving.rows import arguments_of, rows_of_files
from stages.data.tables import Typed, read, read_files
from stages.errors import UserError
from stages.features.drift import Drift
from stages.settings.table import Header, TableSettings
from stages.settings.table_files import files_of
from tests.pipeline.experiments import Patch, Printed, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model returns twice the size (-1 if it is missing) in two shapes, and the color."""
    folder = write_run(tmp_path_factory.mktemp("predict") / "runs" / "day" / "table")

    def serve(columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        size = columns["size__m_"]
        doubled = tf.where(tf.math.is_nan(size), tf.constant(-1.0, tf.float64), 2 * size)
        pair = tf.stack([doubled, tf.cast(columns["grade"], tf.float64)], axis=1)
        return {"doubled": doubled, "probabilities": pair, "name": columns["color"], "target": doubled[:, None]}

    kinds = {"size__m_": tf.float64, "grade": tf.int64, "color": tf.string}
    specs = {name: tf.TensorSpec((None,), kind, name=name) for name, kind in kinds.items()}
    function = tf.function(serve, autograph=False).get_concrete_function(specs)
    module = tf.Module()
    with tf.device("/cpu:0"):
        module.class_names = tf.Variable(["large", "grün"], trainable=False)
    tf.saved_model.save(module, str(folder / "export" / "saved_model"), {"serving_default": function})
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text("color,other,size (m),grade\nred,x,1.5,1\n,y,,2\nblüe,z,3,3\n")
    return path


def test_predictions_are_written_to_a_file(run: Path, table: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """The input may be a file of any format, or a folder of files."""
    monkeypatch.setattr("pipeline.serving.rows.BATCH", 2)
    output, other = tmp_path / "predicted.parquet", tmp_path / "folder" / "other.tsv"
    other.parent.mkdir()
    (tmp_path / "folder" / "a.png").write_bytes(b"")
    other.write_text(table.read_text().replace(",", "\t"))
    assert predict.main([str(run), str(table), str(other.parent), "-o", str(output)]) == 0
    answers = pq.read_table(output)
    assert answers.column_names == ["file", "row", "doubled", "name", "probabilities", "target"]
    assert json.loads(answers.schema.metadata[b"class_names"]) == ["large", "grün"]
    assert answers["file"].to_pylist() == ["new.csv"] * 3 + ["other.tsv"] * 3
    columns: dict[str, list[Any]] = {"row": [1, 2, 3], "doubled": [3.0, -1.0, 6.0], "name": ["red", "", "blüe"]}
    columns["target"] = columns["doubled"]
    for name, values in {**columns, "probabilities": [[3, 1], [-1, 2], [6, 3]]}.items():
        assert answers[name].to_pylist() == values * 2
    assert predict.main([str(run), str(table), "-o", str(tmp_path / "answers.csv")]) == 0
    written = pd.read_csv(tmp_path / "answers.csv", keep_default_na=False)
    assert [*written] == ["file", "row", "doubled", "name", "probabilities.large", "probabilities.grün", "target"]
    assert written["probabilities.grün"].tolist() == [1, 2, 3]
    assert written["target"].tolist() == columns["target"]


def test_columns_may_have_either_name_and_booleans_have_one_spelling() -> None:
    known = {"ok": {"kind": "category", "column": "is ok", "values": ["True", "False", ""], "shares": [0.0] * 12}}
    default = SimpleNamespace(structured_input_signature=((), {"ok": tf.TensorSpec([None], tf.string)}))
    loaded = SimpleNamespace(signatures={"serving_default": default})
    for name in ("is ok", "ok"):
        frame = pd.DataFrame({name: [True, "TRUE", "true", False, None]})
        taken = arguments_of(loaded, TableSettings(), Drift(json.dumps(known)), frame)
        assert taken["ok"].tolist() == ["True", "True", "True", "False", ""]


def test_a_value_is_the_same_in_training_in_a_file_and_in_a_request(tmp_path: Path) -> None:
    """This holds for any format of numbers, and for custom missing values."""
    kinds = {"weight": "number", "share": "number", "grade": "whole", "place": "category"}
    lines = ["1 200,5 kg;(1.200,5);1; a", "3 kg;7,25;2,0;NA", "-;−1;3;?"]
    (tmp_path / "a.csv").write_text("\n".join([";".join(kinds), *lines]) + "\n")
    given: dict[str, Any] = {"units": {"weight": "kg"}, "decimal": ",", "thousands": ".", "missing": ["?", "-"]}
    settings = TableSettings(files=str(tmp_path / "a.csv"), target="grade", features=kinds, **given)
    rows = read_files(Header.of(files_of(settings.files), None, "utf8"), settings)
    trained, texts, _ = read(rows, [Typed(*column) for column in kinds.items()], "fail")
    specs = {"weight": tf.float64, "share": tf.float64, "grade": tf.int64, "place": tf.string}
    signature = ((), {name: tf.TensorSpec([None], kind) for name, kind in specs.items()})
    loaded = SimpleNamespace(signatures={"serving_default": SimpleNamespace(structured_input_signature=signature)})
    loaded.reading = tf.constant(json.dumps(settings.reading))
    known = json.dumps({name: {"kind": "number", "column": name, "borders": [], "shares": []} for name in kinds})
    cells = [[cell.strip() for cell in line.split(";")] for line in lines]
    request = pd.DataFrame(cells, columns=[*kinds])
    as_numbers = request.assign(weight=[1200.5, 3, None], share=[-1200.5, 7.25, -1.0], grade=[1, 2.0, 3])
    [(*_, of_file)] = rows_of_files(loaded, reading_settings(loaded, [tmp_path / "a.csv"]), Drift(known))
    for taken in (
        of_file,
        *(arguments_of(loaded, reading_settings(loaded), Drift(known), one) for one in (request, as_numbers)),
    ):
        for name in kinds:
            expected = np.array(texts[name], object)[trained[name]] if name in texts else trained[name]
            np.testing.assert_array_equal(taken[name], expected)
    np.testing.assert_array_equal(trained["weight"], [1200.5, 3, np.nan])
    np.testing.assert_array_equal(trained["share"], [-1200.5, 7.25, -1])


def model_of(**specs: tuple[Any, list[int]]) -> Any:
    """Return a model that accepts columns with a dtype and a shape, without the number of rows."""
    signature = ((), {name: tf.TensorSpec([None, *shape], kind) for name, (kind, shape) in specs.items()})
    return SimpleNamespace(signatures={"serving_default": SimpleNamespace(structured_input_signature=signature)})


def arrays_read(loaded: Any, path: Path) -> list[tuple[str, int, dict[str, np.ndarray]]]:
    known = {"history": "series", "images": "features"}
    none: dict[str, Any] = {"kind": "number", "borders": [], "shares": []}
    drift = Drift(json.dumps({name: {**none, "column": column} for name, column in known.items()}))
    return [*rows_of_files(loaded, reading_settings(loaded, [path]), drift)]


def test_arrays_of_a_file_are_the_arguments_of_a_model(tmp_path: Path, monkeypatch: Patch) -> None:
    """Their values are those of a table, and the only array may be called `x`, like in training."""
    monkeypatch.setattr("pipeline.serving.rows.BATCH", 2)
    size, color, wide = (
        np.array([1.5, np.nan, 3]),
        np.array(["red", "", "blüe"]),
        np.arange(6, dtype="f4").reshape(3, 2),
    )
    np.savez(tmp_path / "new.npz", size=size, color=color, wide=wide, other=np.zeros(9))
    columns = model_of(size=(tf.float64, []), color=(tf.string, []), wide=(tf.float64, [2]))
    [(file, first, start), (_, second, rest)] = arrays_read(columns, tmp_path / "new.npz")
    assert (file, first, second) == ("new.npz", 1, 3)
    for name, expected in {"size": size, "color": color, "wide": wide}.items():
        np.testing.assert_array_equal(np.concatenate([start[name], rest[name]]), expected)
    assert start["wide"].dtype == np.float64
    series, pixels = np.ones((3, 4, 2)), np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    for name, loaded, array, as_given in (
        ("history", model_of(history=(tf.float64, [4, 2])), series, series),
        ("history", model_of(history=(tf.float64, [4, 1])), series[..., 0], series[..., :1]),
        ("images", model_of(images=(tf.float32, [3, 3, 1])), pixels, pixels[..., np.newaxis]),
    ):
        for called in ("x", name, "series" if name == "history" else "features"):
            np.savez(tmp_path / "alone.npz", **{called: array, "y": np.zeros(3)})  # type: ignore[arg-type]
            found = arrays_read(loaded, tmp_path / "alone.npz")
            np.testing.assert_array_equal(np.concatenate([part[name] for *_, part in found]), as_given)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((3, 5, 2))}, r"a\.npz: x has the shape \(3, 5, 2\)\. Expected the shape \[N, 4, 2\]"),
        ({"y": np.zeros(3)}, r"a\.npz has no column series\. Expected the columns that the model requires: series"),
        ({"x": np.array([{}, {}])}, r"a\.npz cannot be read .*without pickled objects"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=message):
        arrays_read(model_of(history=(tf.float64, [4, 2])), tmp_path / "a.npz")


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", size=np.zeros(3), wide=np.zeros((4, 2)))
    with pytest.raises(UserError, match=r"wide has the shape \(4, 2\).*the same N in all arrays"):
        arrays_read(model_of(size=(tf.float64, []), wide=(tf.float64, [2])), tmp_path / "a.npz")


def test_without_an_output_file_one_line_per_row_is_printed(run: Path, table: Path, capsys: Printed) -> None:
    assert predict.main([str(run), str(table), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pair = {"large": 6.0, "grün": 3.0}
    answered = {"doubled": 6.0, "name": "blüe", "probabilities": pair, "target": 6.0}
    assert rows[2] == {"file": "new.csv", "row": 3, **answered}
    assert predict.main([str(run), str(table)]) == 0
    shown = ["new.csv", "3", "6", "blüe", "large 6, grün 3", "6"]
    assert capsys.readouterr().out.splitlines()[2].split("\t") == shown


def test_text_files_are_read_as_in_training(tmp_path: Path, capsys: Printed) -> None:
    own = write_run(tmp_path / "runs" / "day" / "texts")
    module = tf.Module()
    with tf.device("/cpu:0"):
        module.reading = tf.Variable('{"encoding": "latin1"}', trainable=False)
    spec = {"text": tf.TensorSpec((None,), tf.string, name="text")}
    function = tf.function(lambda columns: {"name": columns["text"]}, autograph=False).get_concrete_function(spec)
    tf.saved_model.save(module, str(own / "export" / "saved_model"), {"serving_default": function})
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in (("a.txt", 'größe, "\nNA'), ("b.TXT", "NA"), (".c.txt", "hidden"), ("d.csv", "text\nnone")):
        (folder / name).write_bytes(text.encode("latin1"))
    assert predict.main([str(own), str(folder), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    named = {str(folder / "a.txt"): 'größe, "\nNA', str(folder / "b.TXT"): "NA"}
    assert [(row["file"], row["name"]) for row in rows] == [*named.items()]
    assert predict.main([str(own), str(folder / "d.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "none"
    assert predict.main([str(own), str(tmp_path / "runs")]) == 2
    assert "contains no files for this model. Expected files that end in .txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [("color,grade\nred,1\n", "has no column size__m_"), ("color,size (m),grade\n", "has no rows"),
     ("color,size (m),grade\nred,large,1\n", "new.csv row 1, column size (m): 'large' is not a number")],
)  # fmt: skip
def test_unusable_tables_are_refused(run: Path, tmp_path: Path, content: str, message: str, capsys: Printed) -> None:
    (tmp_path / "new.csv").write_text(content)
    output = tmp_path / "predicted.parquet"
    assert predict.main([str(run), str(tmp_path / "new.csv"), "-o", str(output)]) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()


def test_errors_do_not_suggest_settings_that_the_command_lacks(run: Path, tmp_path: Path, capsys: Printed) -> None:
    """A table is read as in training; a missing file is reported before TensorFlow is imported."""
    (tmp_path / "new.csv").write_text("color,size (m)\nred,1\n", "utf16")
    assert predict.main([str(run), str(tmp_path / "new.csv")]) == 2
    errors = capsys.readouterr().err
    assert "is not encoded in utf8. Expected the same encoding in all files, as in training" in errors
    assert "data." not in errors
    assert predict.main(["no_run", str(tmp_path / "nofile.csv")]) == 2
    assert "nofile.csv was not found. Expected existing files or folders" in capsys.readouterr().err


def test_an_output_file_of_another_format_is_refused(tmp_path: Path, capsys: Printed) -> None:
    assert predict.main(["any", "new.csv", "-o", str(tmp_path / "answers.xlsx")]) == 2
    assert f"Try: --output={tmp_path / 'answers.parquet'}" in capsys.readouterr().err


def test_a_file_without_rows_is_skipped(run: Path, tmp_path: Path, capsys: Printed) -> None:
    rows = pa.table({"color": ["red", "blue"], "size (m)": [1.5, 2.0], "grade": [1, 2]})
    files = [tmp_path / "full.parquet", tmp_path / "empty.parquet"]
    for file, part in zip(files, (rows, rows[:0]), strict=True):
        pq.write_table(part, file)
    assert predict.main([str(run), *map(str, files), "--json"]) == 0
    assert [json.loads(line)["doubled"] for line in capsys.readouterr().out.splitlines()] == [3.0, 4.0]
