"""The arithmetic of the benchmarks: turns, ratios, exponents, and what counts as a regression."""

import json
from importlib import import_module
from typing import Any

import pytest

from benchmarks.__main__ import RECORDED, regressions, spreads
from benchmarks.measuring import Samples, Spread, exponent, interleave, ratios
from benchmarks.report import table, verdict
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


def samples_of(row: Row, ours: float, theirs: float) -> dict[str, dict[str, Samples]]:
    assert row.against is not None
    samples: Samples = {row.ours: {row.figure: [ours] * 3}, row.against: {row.figure: [theirs] * 3}}
    return {row.measurement: {"samples": samples}}


def test_a_speed_is_the_other_cost_over_ours_and_a_cost_ours_over_the_other() -> None:
    assert spreads(samples_of(SPEED, 2.0, 1.0))[SPEED.key].median == 0.5
    assert spreads(samples_of(COST, 2.0, 1.0))[COST.key].median == 2.0


@pytest.mark.parametrize(("row", "ours"), [(SPEED, 3.0), (COST, 3.0)], ids=["speed", "cost"])
def test_less_than_half_as_good_as_recorded_is_a_regression(row: Row, ours: float) -> None:
    recorded = {row.key: 1.0}
    assert regressions(samples_of(row, 1.9, 1.0), recorded) == []
    [line] = regressions(samples_of(row, ours, 1.0), recorded)
    assert row.key in line


def test_what_is_not_recorded_or_not_measured_is_no_regression() -> None:
    assert regressions(samples_of(SPEED, 9.0, 1.0), {}) == []
    assert regressions({SPEED.measurement: {"why_not": "no data"}}, {SPEED.key: 1.0}) == []


def test_the_page_says_by_how_much_a_target_is_missed_and_what_was_not_measured() -> None:
    assert verdict(SPEED, 1.0) == "met"
    assert verdict(SPEED, SPEED.at_least / 2 if SPEED.at_least else 0) == "missed by 50%"
    measured: dict[str, dict[str, Any]] = {**samples_of(SPEED, 2.0, 1.0)}
    measured[COST.measurement] = {"why_not": "no such machine"}
    page = table({name: {**found, "machine": "two cores"} for name, found in measured.items()}, spreads(measured))
    assert "missed by" in page
    assert f"- {COST.key}: no such machine" in page


def test_every_missed_target_has_its_reason() -> None:
    recorded = json.loads(RECORDED.read_text())
    missed = [row for row in ROWS if row.key in recorded and not row.is_met(recorded[row.key])]
    assert [row.key for row in missed if not row.note] == []


def test_every_row_has_its_measurement_and_a_key_of_its_own() -> None:
    assert {row.measurement for row in ROWS} == set(MEASUREMENTS)
    assert len({row.key for row in ROWS}) == len(ROWS)
    for name in MEASUREMENTS:
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(f"benchmarks.{module}"), function))
