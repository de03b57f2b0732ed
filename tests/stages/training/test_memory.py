"""How much memory there is, what a step takes of it, and what is said where it is too little."""

import resource
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stages.data.free_memory import _remainder, available_memory
from stages.errors import UserError
from stages.evaluate import evaluate
from stages.evaluation.eval_step import Scorer
from stages.networks.complexity import cost_of_step, peak_of_inference
from stages.networks.inference_memory import SCORING_BYTES, scoring_batch
from stages.reporter import Silent
from stages.results import Trained
from stages.settings.optimizer import SgdSettings
from stages.settings.results import EvaluateSettings
from stages.training.memory import Estimate, check_memory, estimate
from tests.stages.experiments import adam, mirrored, one_device, real_digits, settings, small_cnn


def test_what_is_left_is_no_more_than_the_machine_has() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_an_address_space_that_is_limited_counts() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    room = 2**30
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + room, before[1]))
    try:
        assert 0 < available_memory() <= room
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


CGROUPS = {
    "v2": ("memory.max", "memory.current", "inactive_file"),
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@pytest.mark.parametrize("names", CGROUPS.values(), ids=CGROUPS)
def test_a_control_group_has_left_what_it_allows_besides_cached_files(names: tuple[str, ...], tmp_path: Path) -> None:
    limit, used, cached = names
    (tmp_path / used).write_text("700\n")
    (tmp_path / "memory.stat").write_text(f"anon 3\n{cached} 200\n")
    assert _remainder(tmp_path) is None
    (tmp_path / limit).write_text("1000\n")
    assert _remainder(tmp_path) == 500
    (tmp_path / limit).write_text("max\n")
    assert _remainder(tmp_path) is None


def test_a_step_takes_less_in_half_precision_and_below_frozen_layers() -> None:
    dataset, where = real_digits(64), one_device()
    whole = small_cnn(dataset, where)
    peak = cost_of_step(whole.network).peak
    outputs = 8 * 8 * 8 + 4 * 4 * 8 + 4 * 4 * 16 + 2 * 2 * 16  # of convolutions and pooling, which backward reads
    assert 4 * outputs <= peak <= 3 * 4 * outputs
    assert cost_of_step(small_cnn(dataset, where, "float64").network).peak == pytest.approx(2 * peak, rel=0.1)
    assert cost_of_step(small_cnn(dataset, where, "mixed_bfloat16").network).peak < peak
    for layer in whole.network.core.layers[:-1]:
        layer.trainable = False
    assert cost_of_step(whole.network).peak < 0.75 * peak


def test_what_an_optimizer_keeps_is_counted() -> None:
    dataset, where = real_digits(64), one_device()
    model = small_cnn(dataset, where)
    weights = sum(4 * weight.size for weight in model.network.get_weights())

    def fixed(**given: object) -> int:
        return estimate(model, dataset, where, settings(**given)).fixed

    plain = fixed(optimizer=SgdSettings(momentum=0.0))
    # Each slot is there, and once more in a checkpoint that is being written.
    assert fixed(optimizer=SgdSettings(momentum=0.9)) - plain == 2 * weights
    assert fixed(optimizer=adam()) - plain == 4 * weights
    assert fixed(optimizer=adam(ema_momentum=0.9)) - plain == 6 * weights
    two = estimate(model, dataset, mirrored(2), settings(optimizer=SgdSettings(momentum=0.0)))
    assert (two.replicas, two.sharing) == (2, 2)
    assert two.fixed - plain > 2 * weights  # replicas of one host share its memory


def test_parts_of_a_batch_take_less() -> None:
    dataset, where = real_digits(64), one_device()
    model = small_cnn(dataset, where)
    whole, half = (
        estimate(model, dataset, where, settings(optimizer=replace(adam(), accumulation=parts))) for parts in (1, 2)
    )
    assert whole.of(1024) - half.of(1024) == pytest.approx(512 * whole.per_example)


def test_the_largest_batch_that_fits_is_named() -> None:
    dataset, where = real_digits(64), mirrored(2)
    model = small_cnn(dataset, where)
    given = settings(batch_size=4096)
    wanted = estimate(model, dataset, where, given)
    assert check_memory(model, dataset, where, given, wanted.of(4096)) == {
        "memory_estimate_mib": round(wanted.of(4096) / 2**20)
    }
    with pytest.raises(UserError, match=r"batch_size=4096 takes about .*Try: train.batch_size=2048") as caught:
        check_memory(model, dataset, where, given, wanted.of(4096) - 1)
    assert "2048 and less" in str(caught.value)
    with pytest.raises(UserError, match="not one example fits"):
        check_memory(model, dataset, where, given, 2**20)


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("available", [99, 104, 150, 164, 5000])
def test_a_batch_that_is_named_fits(replicas: int, available: int) -> None:
    wanted = Estimate(fixed=100, per_example=1.0, per_image=1.0, replicas=replicas, sharing=replicas, parts=1)
    batch = wanted.largest_batch(available)
    if batch == 0:
        assert wanted.of(replicas) > available
        return
    assert wanted.of(batch) <= available
    assert batch >= replicas
    is_power = batch & (batch - 1) == 0
    assert (is_power and wanted.of(2 * batch) > available) or (
        batch % replicas == 0 and wanted.of(batch + replicas) > available
    )


def test_scoring_takes_a_bounded_memory_and_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, where = real_digits(64), one_device()
    model = small_cnn(dataset, where)
    each = peak_of_inference(model.network)
    assert 0 < each < cost_of_step(model.network).peak
    assert SCORING_BYTES / 3 < scoring_batch(model.network) * each < SCORING_BYTES
    whole = Scorer(where, model, dataset.num_classes).score(dataset.test, 256)
    monkeypatch.setattr("stages.networks.inference_memory.SCORING_BYTES", 20 * each)
    assert 1 <= scoring_batch(model.network) < 20
    scorer = Scorer(where, model, dataset.num_classes)
    assert scorer.most == scoring_batch(model.network)
    parts = scorer.score(dataset.test, scorer.most)
    assert (parts.confusion == whole.confusion).all()
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    monkeypatch.setattr("stages.networks.inference_memory.SCORING_BYTES", 1)
    assert scoring_batch(model.network, mirrored(2)) == 2  # one a replica at least


def test_the_batch_of_an_evaluation_is_chosen_by_memory_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lines(Silent):
        def log(self, line: str) -> None:
            lines.append(line)

    def taken(batch_size: int | None) -> int:
        lines.clear()
        settings = EvaluateSettings(batch_size=batch_size, mistakes=0)
        return evaluate(trained, dataset, where, settings, reporter=Lines()).record.params["batch_size"]

    dataset, where, lines = real_digits(64), one_device(), list[str]()
    trained = Trained(small_cnn(dataset, where), (), 1, 0)
    assert taken(None) == 256
    assert not any("256 MiB" in line for line in lines)
    monkeypatch.setattr("stages.networks.inference_memory.SCORING_BYTES", 20 * peak_of_inference(trained.model.network))
    assert 1 <= taken(None) < 20
    assert "evaluate.batch_size" in lines[0]
    assert taken(100) == 100


def test_validation_is_estimated_where_it_takes_more_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, where = real_digits(64), one_device()
    model = small_cnn(dataset, where)
    alone = estimate(model, dataset, where, settings(batch_size=1))
    assert alone.of(1) == alone.fixed + alone.scoring
    assert alone.scoring > min(len(dataset.val), 256) * peak_of_inference(model.network)
    assert alone.of(4096) > alone.of(1)
    monkeypatch.setattr("stages.networks.inference_memory.SCORING_BYTES", 2**14)
    assert estimate(model, dataset, where, settings(batch_size=1)).scoring <= 2**14
