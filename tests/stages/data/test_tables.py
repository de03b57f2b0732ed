"""Tables: what is found of their columns, how they are read, and what is said of files that cannot be."""

import gzip
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from pipeline.internals.hydra import parse
from stages.data.profiles import scan
from stages.data.table_source import TableSource
from stages.data.table_source import read_rows as read_rows_of
from stages.data.tables import NUMBERS, Rows, Typed, argument_names, place_of, read, read_files
from stages.data.written_numbers import NumberFormat
from stages.errors import UserError
from stages.settings.table import Header, TableSettings
from stages.settings.table_files import files_of

PLAIN = "size,color,price\n1.5,red,10\n2.5,blue,20\n,red,30\n"

NULL = r"\N"
"""A missing value, as databases write it."""

Write = Callable[..., TableSettings]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file, and return the settings that name it."""

    def make(content: str | bytes, name: str = "table.csv", **settings: Any) -> TableSettings:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return TableSettings(**{"files": str(path), "target": "price", **settings})

    return make


def header_of(settings: TableSettings) -> Header:
    return Header.of(files_of(settings.files), settings.delimiter, settings.encoding)


def rows_of(settings: TableSettings, folder: Path | None = None) -> Rows:
    return read_files(header_of(settings), settings, folder)


def read_rows(rows: Rows, settings: TableSettings) -> TableSource:
    """Return rows that are all of the training split."""
    return read_rows_of(rows, settings, lambda source: {"train": np.arange(len(source.numbers))})


def kinds(settings: TableSettings) -> dict[str, str]:
    """Return the kind of each column, and in brackets why it is left out."""
    found = {name: profile.kind() for name, profile in scan(rows_of(settings)).items()}
    return {name: f"{kind} ({note})" if note else kind for name, (kind, note) in found.items()}


def columns(settings: TableSettings, **read_as: str) -> dict[str, np.ndarray]:
    """Return the columns by name, and what is left out."""
    arrays, texts, skipped = read(rows_of(settings), [Typed(*item) for item in read_as.items()], settings.on_error)
    values = {name: np.array(texts[name], object)[array] if name in texts else array for name, array in arrays.items()}
    return {**values, "skipped": np.array(skipped)}


@pytest.mark.parametrize(("delimiter", "compressed"), [(",", False), (";", True), ("\t", False), ("|", True)])
def test_text_files_of_any_delimiter_compressed_or_not(write: Write, delimiter: str, compressed: bool) -> None:
    content = PLAIN.replace(",", delimiter).encode()
    settings = write(*((gzip.compress(content), "table.csv.gz") if compressed else (content, "table.txt")))
    settings.check("data")
    values = columns(settings, size="number", color="category", price="whole")
    np.testing.assert_array_equal(values["size"], [1.5, 2.5, np.nan])
    assert values["color"].tolist() == ["red", "blue", "red"]
    assert values["price"].tolist() == [10, 20, 30]


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_typed_files_and_patterns(write: Write, tmp_path: Path, suffix: str) -> None:
    table = pa.table(
        {
            "size": pa.array([1.5, None, float("nan")], pa.float32()),
            "color": pa.array(["red", None, "blue"]).dictionary_encode(),
            "is_new": [True, False, None],
            "price": pa.array([1, 2, 3], pa.int8()),
        }
    )
    for name in "ba":
        writer = pq.write_table if suffix == "parquet" else pa.feather.write_feather
        writer(table, tmp_path / f"{name}.{suffix}")
    settings = TableSettings(files=[str(tmp_path / f"*.{suffix}")], target="price")
    settings.check("data")
    assert [path.name for path in header_of(settings).files] == [f"a.{suffix}", f"b.{suffix}"]
    values = columns(settings, size="number", color="category", is_new="category", price="number")
    np.testing.assert_array_equal(values["size"], [1.5, np.nan, np.nan] * 2)
    assert values["color"].tolist() == ["red", "", "blue"] * 2
    assert values["is_new"].tolist() == ["True", "False", ""] * 2
    assert (values["price"].tolist(), values[NUMBERS].tolist()) == ([1, 2, 3] * 2, [0, 1, 2, 3, 4, 5])


def test_values_are_the_same_from_whatever_file(write: Write, tmp_path: Path) -> None:
    """As pandas writes a column to CSV, with and without missing values, and to Parquet."""
    frame = pd.DataFrame({"rooms": [2, 3, 2], "is_new": [True, False, True], "price": [1, 2, 3]})
    some = frame.assign(rooms=[2.0, 3.0, np.nan])
    read_as = {"rooms": "category", "is_new": "category"}
    for number, of in enumerate((frame, some)):
        of.to_parquet(tmp_path / f"{number}.parquet")
        parquet = TableSettings(files=str(tmp_path / f"{number}.parquet"), target="price")
        text = of.to_csv(index=False)
        other = write(text.replace("True", "true").replace("False", "FALSE"), "other.csv")
        for settings in (write(text), other, parquet):
            found = columns(settings, **read_as)
            assert found["rooms"].tolist() == ["2", "3", "" if of is some else "2"]
            assert found["is_new"].tolist() == ["True", "False", "True"]
            whole = columns(settings, rooms="whole")["rooms"]
            assert (whole[:2].tolist(), whole[2] == 2) == ([2, 3], of is frame)
    settings = write("rooms,price\n2.5,1\n")
    with pytest.raises(UserError, match=r"'2\.5' is not a whole number"):
        columns(settings, rooms="whole")
    frame.assign(rooms=[2.5, 3.0, np.nan]).to_parquet(tmp_path / "half.parquet")
    with pytest.raises(UserError, match=r"'2\.5' is not a whole number"):
        columns(TableSettings(files=str(tmp_path / "half.parquet"), target="price"), rooms="whole")


def test_kinds(write: Write) -> None:
    rows = 200
    settings = write(
        "id,code,zip,grade,size,sold,seen,comment,name,empty,same,pool,counter,price\n"
        + "".join(
            f"{(row * 7919) % 99991},{row % 30},0{row % 40 + 1000},{row % 5},{row / 7},2024-01-{row % 28 + 1:02},"
            f"{row % 28 + 1}.12.2025,word number {row} and more,n{row},,7,{'yes' * (row % 2)},{row + 5},{row * 3}\n"
            for row in range(rows)
        )
    )
    assert kinds(settings) == {
        "id": "leave_out (an identifier, 200 different values)",
        "code": "number",
        "zip": "category",  # leading zeros
        "grade": "category",
        "size": "number",
        "sold": "date",
        "seen": "date",
        "comment": "leave_out (a text, 200 different values)",
        "name": "leave_out (an identifier, 200 different values)",
        "empty": "leave_out (no values)",
        "same": "leave_out (only one value)",
        "pool": "category",  # of yes and nothing
        "counter": "leave_out (an identifier, 200 different values)",
        "price": "number",
    }


@pytest.mark.parametrize("size", [
    "{:.2f}", "${}", "{} %", "{:,.2f}", "-{:.1f} €", "{:.1f}kg", "<{:.1f}", "$({:.2f})", "{:.1f} sq ft", "{:.1f}*",
    "{:.1f}×10^3", "{:.1f}±0.2", "'{:.1f}", '="{:.1f}"', "{:.1f}bhp@rpm", "{:.1f}\u2032",
])  # fmt: skip
def test_numbers_with_marks_are_neither_dropped_nor_categories(write: Write, size: str) -> None:
    values = (size.format(1000 + row * 997 / 8) for row in range(40))
    settings = write(
        "size;price\n" + "".join(f"{value.replace('.', ',')};{row % 2}\n" for row, value in enumerate(values))
    )
    with pytest.raises(UserError, match=r"row \d, column size is ['\"].*['\"], but \d of 40 values in this column"):
        read_rows(rows_of(settings), settings)
    for features in ({"size": "leave_out"}, {"size": "category"}, ["price"]):
        settings.features = features
        read_rows(rows_of(settings), settings)


WRITTEN = {
    "": "1\u2007200=1200 \u200b5=5"
    " (1,200.00)=-1200 1\u00a0200=1200 1\u202f200.5=1200.5 1'200=1200 1’200=1200 \u22125=-5 1_000=1000 12-=-12"
    " +5=5 1e3=1000 1.5E-3=.0015 1,234,567=1234567 12,34,567=1234567 -.5=-.5 5.=5 (−5)= 1,5= 1,234= 1.234,5= 1__000="
    " 12_34= 2020–2021= 1.2.3= 0x1F= 1a= 12:30= 2024-01-02= --5= () <5= 5%= $5= 1_000_00= 0\u00a0120=",
    "decimal=, thousands=.": "1,5=1.5 1.234,5=1234.5 1.234=1234 1.234.567=1234567 1\u00a0200,5=1200.5 1.5= 1,234.5=",
    "decimal=,": "1,234=1.234 1.234,5=1234.5 1.234= 1e3=1000 ,5=.5",
    "thousands=,": "1,234=1234 1,234.5=1234.5 12,34= -1,234=-1234",
    "unit=kg": "3.2\u00a0kg=3.2 (3kg)=-3 −3kg=-3 1,200.5\u00a0kg=1200.5 kg3=3 3=3 3g= kg= 3kgkg=",
    "unit=$": "$3.06=3.06 -$3=-3 $-3=-3 ($1,200.00)=-1200 3$=3 €3=",
}


@pytest.mark.parametrize("given", WRITTEN)
def test_numbers_have_one_meaning_or_none(given: str) -> None:
    """What may be two numbers, or a date, a version or another code, is none."""
    form = NumberFormat(**dict(word.split("=") for word in given.split()))
    pairs = [word.partition("=") for word in WRITTEN[given].split(" ")]
    expected = {text: float(value) if value else None for text, _, value in pairs}
    found = form.plain(pa.array([*expected])).to_pylist()
    assert dict(zip(expected, (None if one is None else float(one) for one in found), strict=True)) == expected


def advice(content: str, write: Write) -> str:
    """Return what is advised for a table that is refused."""
    settings = write(content)
    with pytest.raises(UserError) as refused:
        read_rows(rows_of(settings), settings)
    return refused.value.fix


def test_marks_are_not_advised_that_would_change_other_columns(write: Write) -> None:
    """Otherwise the advice for one column would be refused for another, and back."""
    rows = [f"{row}.{row % 9}5" for row in range(1, 40)]
    commas = "".join(f"{row.replace('.', ',')};{row.replace('.', ',')}\n" for row in rows)
    assert advice(f"size;price\n{commas}", write) == r"'data.decimal=\,'"
    both = "".join(f"{row.replace('.', ',')};{row}\n" for row in rows)
    assert advice(f"size;price\n{both}", write) == "'++data.features={size: leave_out}'"


def test_points_between_thousands_are_not_decimals(write: Write) -> None:
    """Nor are decimals of one length, or without zeros at the end, taken for thousands."""
    values = [950, *range(1010, 1900, 20)]
    rows = "".join(f"{value:,};{number % 2}\n" for number, value in enumerate(values)).replace(",", ".")
    assert advice(f"size;price\n{rows}", write) == r"'data.decimal=\,' data.thousands=."
    for forms in (["{:.3f}"], ["{:.0f}", "{:.2f}"], ["{:.0f}", "{:.3f}1"]):
        numbers = [forms[row % len(forms)].format(1 + row / 50) for row in range(300)]
        settings = write("size;price\n" + "".join(f"{number};{row % 2}\n" for row, number in enumerate(numbers)))
        assert read_rows(rows_of(settings), settings).of("size").tolist() == [*map(float, numbers)]


def test_marks_of_few_numbers_are_read_and_not_skipped(write: Write) -> None:
    rows = "".join(f"{1_000_000 + 7 * row:,};{row % 2}\n" for row in range(60))
    assert advice(f"size;price\n{rows}93,388;1\n", write) == r"'data.thousands=\,'"


def test_texts_with_backslashes_can_be_declared_missing(write: Write) -> None:
    rows = "".join(f"{row / 7 if row % 9 else NULL};{row % 2}\n" for row in range(60))
    typed = shlex.split(advice(f"size;price\n{rows}", write))[0]
    settings = write(f"size;price\n{rows}", missing=parse(typed).value())
    assert np.isnan(read_rows(rows_of(settings), settings).of("size")).sum() == 7


def test_codes_are_not_numbers(write: Write) -> None:
    """Nor are they refused, unless all have the form of whole numbers with groups of digits."""
    codes = {
        "zip": "0{:04}", "phone": "030 {:03} 4567", "version": "1.{}.3", "hex": "0x{:x}", "digest": "{:x}f{:x}c",
        "ticket": "A/5 {}", "room": "Room {}", "seat": "{}{:c}", "day": "2024-01-{}", "time": "12:{}", "pages": "3-{}",
    }  # fmt: skip
    lines = [";".join(code.format(row * 7 + 11, row % 26 + 65) for code in codes.values()) for row in range(60)]
    settings = write("\n".join([";".join(codes), *lines, *lines]) + "\n")
    assert "number" not in kinds(settings).values()
    read_rows(rows_of(settings), replace(settings, target="zip"))
    settings = write("phone;price\n" + "".join(f"612 345 {row + 100};{row / 7}\n" for row in range(60)))
    with pytest.raises(
        UserError, match="'612 345 100', and all values have this form, which may be a code or a number"
    ):
        read_rows(rows_of(settings), settings)
    settings.features = {"phone": "number"}
    assert read_rows(rows_of(settings), settings).of("phone")[3] == 612345103
    settings.features = {"phone": "category"}
    assert read_rows(rows_of(settings), settings).of("phone")[3] == "612 345 103"


def test_spaces_around_values_and_names_mean_nothing(write: Write) -> None:
    settings = write(
        'size, color, "full name", price\n1,red,x,1\n 2 , red ,"y", 2\n3,"red ", "z ""z""", 3\n4, NA,\t,4\n'
    )
    assert header_of(settings).columns == ("size", "color", "full name", "price")
    found = columns(settings, color="category", **{"full name": "category"}, size="whole")
    assert found["color"].tolist() == ["red", "red", "red", ""]
    assert found["full name"].tolist() == ["x", "y", 'z "z"', ""]
    assert found["size"].tolist() == [1, 2, 3, 4]


def test_whole_numbers_of_a_first_block_do_not_decide(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.data.tables.BLOCK", 64)
    settings = write("size,price\n" + "0,1\n" * 40 + "0.5,2\n" * 40)
    assert kinds(settings) == {"size": "number", "price": "category"}


@pytest.mark.parametrize(("content", "given", "read_as", "values"), [
    ('size,color,price\n1,"a, ""b""\nc",2\n3,d,4\n', {}, {"color": "category"}, ['a, "b"\nc', "d"]),
    ("\ufeffsize,color,price\n 1.5 ,a,2\n x,b,3\n".encode(), {"on_error": "skip"}, {"size": "number"}, [1.5]),
    ("color,price\ncafé,1\n".encode("latin1"), {"encoding": "latin1"}, {"color": "category"}, ["café"]),
    ("size,price\n1.5,2\n".encode("utf16"), {"encoding": "utf16"}, {"size": "number"}, [1.5]),
], ids=["quoted delimiters and lines", "a mark of byte order, spaces around numbers", "latin1", "utf16"])  # fmt: skip
def test_texts_are_read_as_they_were_written(
    write: Write, content: str, given: dict[str, Any], read_as: dict[str, str], values: list[Any]
) -> None:
    settings = write(content, **given)
    settings.check("data")
    [name] = read_as
    assert columns(settings, **read_as)[name].tolist() == values


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather"])
def test_texts_that_mean_a_missing_value_are_those_of_text_files_or_given(
    write: Write, tmp_path: Path, suffix: str
) -> None:
    """Any may be a value, such as NA, Namibia's code. Other files have missing values of their own."""

    def settings_of(missing: list[str] | None) -> TableSettings:
        settings = write("size,place,price\n?,NA,1\nNA,x,2\n3,,3\n", missing=missing)
        if suffix != "csv":
            table = pa.table({"size": ["?", "NA", "3"], "place": ["NA", "x", None], "price": [1, 2, 3]})
            writer = pq.write_table if suffix == "parquet" else pa.feather.write_feather
            writer(table, tmp_path / f"table.{suffix}")
            settings = TableSettings(files=str(tmp_path / f"table.{suffix}"), target="price", missing=missing)
        return settings

    for missing, places in (None, ["" if suffix == "csv" else "NA", "x", ""]), (["?"], ["NA", "x", ""]):
        assert columns(settings_of(missing), place="category")["place"].tolist() == places
    found = columns(settings_of(["?", "NA"]), size="number", place="category")
    np.testing.assert_array_equal(found["size"], [np.nan, np.nan, 3])
    assert found["place"].tolist() == ["", "x", ""]


@pytest.mark.parametrize(("content", "read_as", "message"), [
    ("a,price\n1,2\nx,3\n", Typed("a", "number"), "table.csv row 2, column a: 'x' is not a number"),
    ("a,price\n1,2\ninf,3\n", Typed("a", "number"), "table.csv row 2, column a: 'inf' is infinite"),
    ("a,price\n1,2\n,3\n", Typed("a", "number", required=True), "table.csv row 2, column a: the value is missing"),
    ("a,price\n1,2\n,3\n", Typed("a", "category", True), "table.csv row 2, column a: the value is missing"),
    ("a,price\n1,2\n1.5,3\n", Typed("a", "whole"), "table.csv row 2, column a: '1.5' is not a whole number"),
    ("a,price\n2024-02-29,2\n2024-02-30,3\n", Typed("a", "date"), "row 2, column a: '2024-02-30' is not a date"),
    ("a,price\n1,2\n1,2,3\n", Typed("a", "number"), "Expected 2 columns, got 3: 1,2,3). "),
    ("a,price\n1,2\n1\n", Typed("a", "number"), "Expected 2 columns, got 1: 1). "),
    (b"a,price\nx,2\ncaf\xe9,3\n", Typed("a", "category"), "table.csv is not encoded in utf8"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_named(write: Write, content: str, read_as: Typed, message: str) -> None:
    settings = write(content)
    with pytest.raises(UserError, match=re.escape(message)):
        read(rows_of(settings), [read_as], "fail")


def test_skipping_is_advised_only_where_rows_are_left(write: Write) -> None:
    skip = "data.on_error=skip"
    for rows, fix in {"x,2\n1,3\n": skip, "x,2\ny,3\n": "", "1,2\n3\n": skip, "1,2,3\n4,5,6\n": ""}.items():
        with pytest.raises(UserError) as caught:
            read(rows_of(write(f"a,price\n{rows}")), [Typed("a", "number")], "fail")
        assert caught.value.fix == fix
    with pytest.raises(UserError) as caught:
        rows_of(write(gzip.compress(b"a,price\n" + b"1,2\n" * 9999)[:-20], "table.csv.gz"))
    assert not caught.value.fix


@pytest.mark.parametrize(("content", "settings", "message"), [
    ("", {}, "table.csv is empty"), ("a,b,a,price\n1,2,3,4\n", {}, "table.csv has two columns named a"),
    (",,\n1,2,3\n", {}, "table.csv is empty"), ("a,b\n1,2\n", {}, "data.target=price: "),
    ("a:price\n1:2\n", {}, "Try: \"data.delimiter=':'\""),
    ("a,price\n1,2\n", {"features": {"b": "number"}}, "data.features=b: "),
    ("a,price\n1,2\n", {"features": {"a": "picture"}}, "data.features: the column a has the unknown kind picture"),
    ("a,price\n1,2\n", {"weight": "w"}, "data.weight=w: "),
    ("a,price\n1,2\n", {"group": "a", "time": "a"}, "data.group and data.time are both set"),
    ("a,price\n1,2\n", {"encoding": "utf9"}, "data.encoding=utf9 is unknown"),
    ("a,price\n1,2\n".encode("utf16"), {}, "Try: data.encoding=utf16"),
    ("a,price\n1,2\n".encode("utf32"), {}, "Try: data.encoding=utf32"),
    ("a,price\n1,2\n".encode("utf-16-le"), {}, "Try: data.encoding=utf-16-le"),
    ("size,price\n1,2\n", {"features": {"sise": "number"}}, "Try: 'data.features={size: number}'"),
    ("size,price\n1,2\n", {"units": {"sise": "kg"}}, "Try: 'data.units={size: \"kg\"}'"),
    ("a,price\n1,2\n", {"features": ["b"]}, "Try: 'data.features=[<column>]'"),
    ("a,price\n1,2\n", {"features": []}, "Try: data.features=null"),
    ("a,price\n1,2\n", {"delimiter": ";;"}, "data.delimiter=;; is not a single character"),
    ("a,price\n1,2\n", {"target": None}, "data.target is not set"),
    ("a,price\n1,2\n", {"files": True}, "data.files=True is not valid"),
    ("a,price\n1,2\n", {"files": "a**b.csv"}, "a**b.csv was not found"),
    ("a,price\n1,2\n", {"files": "~nobody/b.csv"}, "~nobody/b.csv was not found"),
    ("a,price\n1,2\n", {"features": "a"}, "data.features=a"),
    (b"caf\xe9,price\n1,2\n", {}, "Expected the same encoding in all files. Try: data.encoding=cp1252"),
    ("a,price\n1,2\n", {"target": ["price", "price"]}, "Expected each column only once"),
    (",".join(f"c{n}" for n in range(10_000)) + ",price\n", {}, "has 10,001 columns"),
])  # fmt: skip
def test_headers_and_settings_that_cannot_be_used(
    write: Write, content: str | bytes, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        write(content, **settings).check("data")


def test_characters_without_a_width_are_no_part_of_names_and_no_delimiters(write: Write) -> None:
    settings = write("size,\u200bprice,\u2060a\ufeff\n1,2,3\n")
    settings.check("data")
    assert header_of(settings).columns == ("size", "price", "a")


def test_a_header_without_rows(write: Write) -> None:
    settings = write("a,price\n")
    with pytest.raises(UserError, match="has a header but no rows"):
        read_rows(rows_of(settings), settings)


def test_files_of_other_types_and_files_that_end_early(write: Write, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.5, 2.5], "price": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": ["x", "y"], "price": [1, 2]}), tmp_path / "b.parquet")
    settings = TableSettings(files=str(tmp_path / "?.parquet"), target="price")
    with pytest.raises(UserError, match=r"a.parquet and 1 more: .*Field a has incompatible types: double vs string"):
        scan(rows_of(settings))
    settings = write(gzip.compress(b"a,price\n" + b"1,2\n" * 9999)[:-20], "table.csv.gz")
    with pytest.raises(UserError, match=r"cannot be read.*Expected a complete table"):
        scan(rows_of(settings))
    names = ["a", "a", "price"]
    pq.write_table(pa.Table.from_arrays([pa.array([1.0, 2.0])] * 3, names=names), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has two columns named a"):
        header_of(TableSettings(files=str(tmp_path / "a.parquet"), target="price"))


def test_an_index_a_mark_of_bytes_and_dates_beyond_nanoseconds(write: Write) -> None:
    settings = write('\ufeff,day 5","price\n(€)"\n0,9999-12-31,1\n1,0001-01-01,2\n', encoding="UTF-8")
    assert header_of(settings).columns == ("Unnamed: 0", 'day 5"', "price (€)")
    assert kinds(settings)["Unnamed: 0"] == "leave_out (no name)"
    assert columns(settings, **{'day 5"': "date"})['day 5"'].tolist() == [253402214400.0, -62135596800.0]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_index_of_pandas_is_no_feature_and_may_be_in_some_files_alone(tmp_path: Path, form: str) -> None:
    """Nor are whole numbers beyond those of int64, each another, under the name of an identifier."""
    frame = pd.DataFrame({"id": np.arange(40, dtype=np.uint64) * 7 + 2**63, "price": np.arange(40) / 7})
    for name, has_index in (("a", True), ("b", False)):
        getattr(frame, f"to_{form}")(tmp_path / f"{name}.{form}", index=has_index)
    files = [str(tmp_path / f"{name}.{form}") for name in "ab"]
    found = kinds(TableSettings(files=files[0], target="price"))
    index = next(name for name in found if name.startswith(("Unnamed: ", "__index_level_")))
    ids = "leave_out (an identifier, 40 different values)"
    assert found == {"id": ids, "price": "number", index: "leave_out (no name)"}
    for several in (files, files[::-1]):
        settings = TableSettings(files=several, target="price")
        assert header_of(settings).columns == ("id", "price")
        np.testing.assert_array_equal(columns(settings, price="number")["price"], [*frame.price] * 2)
        assert columns(settings, id="category")["id"].tolist() == [*frame.id.astype(str)] * 2


def test_names_of_arguments_are_tensorflows_and_differ_in_more_than_case() -> None:
    names = argument_names(["size", "Size", "1st", "_a", "ё", "self", "images", "numbers", "class"])
    assert all(re.fullmatch("[a-zA-Z][a-zA-Z0-9_]*", name) for name in names.values())
    assert len({name.lower() for name in names.values()} | {"self", "images", "numbers"}) == len(names) + 3


def test_rows_are_found_in_their_file(tmp_path: Path) -> None:
    for folder in ("jan", "feb"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "d.csv").write_text(PLAIN)
    rows = rows_of(TableSettings(files=[str(tmp_path / name / "d.csv") for name in ("jan", "feb")], target="price"))
    assert place_of(rows.parts, 4, "size") == f"{tmp_path}/feb/d.csv row 2, column size"


def test_dictionaries_of_their_own_and_columns_of_any_type_that_are_left_out(tmp_path: Path) -> None:
    def part(words: list[str]) -> pa.Table:
        return pa.table({"a": pa.array(words * 4).dictionary_encode(), "v": [[1]] * 8, "price": [1.0, 2.0] * 4})

    with pq.ParquetWriter(tmp_path / "table.parquet", part(["a", "b"]).schema) as file:
        for words in (["a", "b"], ["c", "d"]):
            file.write_table(part(words))
    settings = TableSettings(files=str(tmp_path / "table.parquet"), target="price", features={"v": "leave_out"})
    for folder in (None, tmp_path):
        assert read_rows(rows_of(settings, folder), settings).of("a").tolist() == ["a", "b"] * 4 + ["c", "d"] * 4


def test_a_list_is_no_feature(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1, 2]], "price": [1]}), tmp_path / "table.parquet")
    settings = TableSettings(files=str(tmp_path / "table.parquet"), target="price")
    with pytest.raises(UserError, match="the column a has the type list"):
        scan(rows_of(settings))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("nothing.csv", "was not found"),
        ("no*.csv", "was not found"),
        (".", "is not a file"),
        ("a.json", "unknown format"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, files: str, message: str) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UserError, match=message):
        files_of(str(tmp_path / files))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_of_a_table_have_the_same_columns_in_any_order(tmp_path: Path, form: str) -> None:
    """In either order of the files; a file may lack a column that is left out."""
    contents = {"a": {"size": [1.5], "price": [1]}, "b": {"price": [2], "size": [2.5]}}
    contents["more"] = {"size": [3.5], "note": [1], "price": [3], "day": [1]}
    for name, content in contents.items():
        frame = pd.DataFrame(content)
        getattr(frame, f"to_{form}")(tmp_path / f"{name}.{form}", index=False)

    def settings_of(*names: str, **given: Any) -> TableSettings:
        files = [str(tmp_path / f"{name}.{form}") for name in names]
        return TableSettings(files=files, target="price", **given)

    assert columns(settings_of("a", "b"), size="number", price="number")["size"].tolist() == [1.5, 2.5]
    for names in ("a", "more"), ("more", "a"), ("a", "b", "more"):
        with pytest.raises(UserError, match=rf"a.{form} has no column note, unlike .*more.{form}") as refused:
            settings_of(*names).check("data")
        assert refused.value.fix == "'++data.features={note: leave_out, day: leave_out}'"
        for features in {"note": "leave_out", "day": "leave_out"}, ["size"]:
            settings = settings_of(*names, features=features)
            settings.check("data")
            assert {*settings.header.columns} == {"size", "price"}
            rows = read_files(settings.header, settings)
            assert len(read_rows(rows, settings).of("size")) == len(names)
        with pytest.raises(UserError, match="has no column day"):
            settings_of(*names, features={"note": "leave_out"}).check("data")
        with pytest.raises(UserError, match="has no column note") as refused:
            settings_of(*names, weight="note").check("data")
        assert not refused.value.fix


BEGINNINGS = {
    "size, m;price\n1;2\n3;4\n": ("size, m", "price"),
    "size, m;price, EUR\n1,5;2,5\n3,5;4,5\n": ("size, m", "price, EUR"),
    '"a;b;c;d",price\n1,2\n': ("a;b;c;d", "price"),
    "a|b,price\n1|2,3\n4,5\n6,7\n": ("a|b", "price"),
    "\n \nsize,price\n1,2\n": ("size", "price"),
    "# of 2024; by hand, checked\n#\nsize,price\n1,2\n": ("size", "price"),
    "# a, b\n\nsize,price\n1,2\n": ("size", "price"),
    "#size\tprice\n1\t2\n": ("#size", "price"),
    "sep=;\nsize, m;price\n1;2\n": ("size, m", "price"),
    "sep=\t\nsize, m\tprice\n1\t2\n": ("size, m", "price"),
    "SEP = ;\nsize;price\n1;2\n": ("size", "price"),
    '"sep=|"\nsize;x|price\n1|2\n': ("size;x", "price"),
    'size,"a\nb;;;;",price\n1,2,3\n': ("size", "a b;;;;", "price"),
    "size;tags;price\n1;a,b;2\n3;c,d;4\n5;;6\n": ("size", "tags", "price"),
    "size,tags,price\n1,a;b;c,2\n": ("size", "tags", "price"),
    "size,price\n": ("size", "price"),
    "price\n1\n2\n": ("price",),
}


@pytest.mark.parametrize("content", BEGINNINGS)
@pytest.mark.parametrize("encoding", ["utf8", "utf-8-sig", "utf16", "utf-16-le with a mark", "cp1252 with a mark"])
def test_headers_and_delimiters_are_found(write: Write, content: str, encoding: str) -> None:
    name, _, has_mark = encoding.partition(" ")
    raw = content.encode(name)
    if has_mark:
        raw = ("\ufeff" + content).encode("utf8" if name == "cp1252" else name)
    settings = write(raw, encoding=name)
    assert header_of(settings).columns == BEGINNINGS[content]
    rows = len([line for line in content.splitlines() if re.match(r"[\d.]", line)])
    assert len(rows_of(settings)) == rows


def test_a_delimiter_is_suggested_where_the_target_is_missing(write: Write) -> None:
    for content, given, fix in (
        ("a^price\n1^2\n", {}, "data.delimiter='^'"), ("a,b^price\n1,2^3\n", {}, "data.delimiter='^'"),
        ("a,price\n1,2\n", {"delimiter": ";"}, "data.delimiter=null"), ("a,prize\n1,2\n", {}, "data.target=prize"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"data\.target=price") as refused:
            write(content, **given).check("data")
        assert refused.value.fix.strip('"') == fix


def test_damaged_files(write: Write) -> None:
    for name in ("table.parquet", "table.feather"):
        with pytest.raises(UserError, match="cannot be read"):
            header_of(write("no such thing", name))
