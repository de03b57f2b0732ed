"""The model of docs/how-it-works/scaling.md: a ring, computed by hand."""

import pytest

from benchmarks.scaling_model import Link, efficiency, reduction_seconds, sent_by_each, step_seconds

LINK = Link.gigabits(8, 50)


def test_a_reduction_by_hand() -> None:
    assert LINK.bandwidth == 1e9
    assert reduction_seconds(1e6, 1, LINK) == 0
    assert reduction_seconds(1e6, 4, LINK) == pytest.approx(6 * 50e-6 + 1.5e-3)


def test_efficiency_falls_with_replicas_and_rises_with_the_batch() -> None:
    assert efficiency(0.1, 1e7, 1, LINK) == 1
    values = [efficiency(0.1, 1e7, replicas, LINK) for replicas in (1, 2, 16, 1024)]
    assert values == sorted(values, reverse=True)
    assert efficiency(0.2, 1e7, 16, LINK) > efficiency(0.1, 1e7, 16, LINK)


def test_processes_that_share_cores_take_turns() -> None:
    assert step_seconds(0.1, 0, 4, Link(1e9, 0), cores=2) == pytest.approx(0.2)
    assert step_seconds(0.1, 0, 2, Link(1e9, 0), cores=4) == pytest.approx(0.1)


@pytest.mark.parametrize("packs", [1, 2, 7])
@pytest.mark.parametrize("compute", [0.001, 0.01, 1.0])
def test_packs_overlap_the_backward_pass(packs: int, compute: float) -> None:
    """Simulate the link, pack by pack."""
    size, replicas = 1e7, 4
    free = end = 0.0
    for pack in range(packs):
        ready = compute / 3 + 2 / 3 * compute * (pack + 1) / packs
        free = max(free, ready) + sent_by_each(size / packs, replicas) / LINK.bandwidth
        end = free + 2 * (replicas - 1) * LINK.latency
    assert step_seconds(compute, size, replicas, LINK, packs) == pytest.approx(end)
    at_once = compute + reduction_seconds(size, replicas, LINK)
    assert step_seconds(compute, size, replicas, LINK) == pytest.approx(at_once)
