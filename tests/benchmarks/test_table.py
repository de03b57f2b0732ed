"""The arithmetic of the benchmarks: turns, ratios, exponents, and what counts as a regression."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import recorded, report
from benchmarks.__main__ import regressions
from benchmarks.measuring import Samples, Spread, exponent, interleave, ratios
from benchmarks.recorded import Record, Records, records_of
from benchmarks.report import PAGE, table, verdict
from benchmarks.table import MEASUREMENTS, ROWS, Row

SPEED = next(row for row in ROWS if row.measurement == "training:convnet" and row.figure == "training")
COST = next(row for row in ROWS if row.ours == "--help")


def test_ways_take_turns_in_alternating_order_and_warm_up_does_not_count() -> None:
    turns: list[str] = []

    def way(name: str) -> dict[str, float]:
        turns.append(name)
        return {"seconds": float(len(turns))}

    samples = interleave({"a": lambda: way("a"), "b": lambda: way("b")}, rounds=2, warm_up=1)
    assert "".join(turns) == "baabba"
    assert samples == {"a": {"seconds": [3.0, 6.0]}, "b": {"seconds": [4.0, 5.0]}}


def test_ratios_are_those_of_each_round() -> None:
    assert ratios([2.0, 30.0], [1.0, 10.0]) == [2.0, 3.0]
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0, rounds=5)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_power_law(power: float) -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def measured(row: Row, ours: float, theirs: float) -> Records:
    assert row.against is not None
    samples: Samples = {row.ours: {row.figure: [ours] * 3}, row.against: {row.figure: [theirs] * 3}}
    return records_of({row.measurement: {"samples": samples, "machine": "two cores"}})


def test_a_speed_is_the_other_cost_over_ours_and_a_cost_ours_over_the_other() -> None:
    assert measured(SPEED, 2.0, 1.0)[SPEED.key].spread.median == 0.5
    assert measured(COST, 2.0, 1.0)[COST.key].spread.median == 2.0


@pytest.mark.parametrize("row", [SPEED, COST], ids=["speed", "cost"])
def test_less_than_half_as_good_as_recorded_is_a_regression(row: Row) -> None:
    before = measured(row, 1.0, 1.0)
    assert regressions(measured(row, 1.9, 1.0), before) == []
    [line] = regressions(measured(row, 3.0, 1.0), before)
    assert row.key in line


def test_what_is_not_recorded_or_not_measured_is_no_regression() -> None:
    assert regressions(measured(SPEED, 9.0, 1.0), {}) == []
    assert regressions(records_of({SPEED.measurement: {"why_not": "no data"}}), measured(SPEED, 1.0, 1.0)) == []


def test_the_page_says_by_how_much_a_target_is_missed_and_what_was_not_measured() -> None:
    assert verdict(SPEED, 1.0) == "met"
    assert verdict(SPEED, SPEED.at_least / 2 if SPEED.at_least else 0) == "missed by 50%"
    page = table(measured(SPEED, 2.0, 1.0), {COST.measurement: "no such machine"})
    assert "missed by" in page
    assert f"- {COST.key}: no such machine" in page
    assert page.endswith("two cores")


def test_the_page_says_which_rows_are_of_another_machine() -> None:
    others = {key: Record(Spread(1.0, 1.0, 1.0, 1), "one core") for key in (ROWS[3].key, ROWS[4].key)}
    page = table({**measured(SPEED, 2.0, 1.0), **others}, {})
    assert page.endswith(f"\none core\n\nMeasured with two cores: {SPEED.key}")


def test_what_is_not_measured_again_stays_as_it_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "RECORDED", tmp_path / "recorded.json")
    first = {**measured(SPEED, 2.0, 1.0), "a row that there was once": Record(Spread(1.0, 2.0, 3.0, 4), "one core")}
    recorded.write(first)
    assert recorded.read() == measured(SPEED, 2.0, 1.0)
    again = {**recorded.read(), **measured(COST, 2.0, 1.0)}
    recorded.write(again)
    assert recorded.read() == again
    assert set(again) == {SPEED.key, COST.key}


def test_every_missed_target_has_its_reason_and_the_page_is_made_of_what_is_recorded() -> None:
    records = recorded.read()
    missed = [row for row in ROWS if row.key in records and not row.is_met(records[row.key].spread.median)]
    assert [row.key for row in missed if not row.note] == []
    assert table(records, {}) in PAGE.read_text()


def test_every_row_has_its_measurement_and_a_key_of_its_own() -> None:
    assert {row.measurement for row in ROWS} == set(MEASUREMENTS)
    assert len({row.key for row in ROWS}) == len(ROWS)
    for name in MEASUREMENTS:
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(f"benchmarks.{module}"), function))


def test_the_figure_explains_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FIGURE", tmp_path / "performance.png")
    met, missed = Spread(1.0, 1.0, 1.0, 3), Spread(4.0, 4.0, 4.0, 3)
    figure = report.draw([(SPEED, met), (COST, missed)])
    [axes], [legend] = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "median meets the target", "median misses the target", "quartiles over the rounds"
    ]  # fmt: skip
    assert figure.get_suptitle().endswith("1 of 2 targets are met.")
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        f"{COST.name.strip('`')}, compared with {COST.against}",
        f"{SPEED.name}, compared with bare compute",
    ]
    assert (tmp_path / "performance.png").is_file()
