"""What a training chooses for its user is printed, recorded, kept by a run that resumes, overridden by a setting."""

from pathlib import Path

import pytest

from stages.checkpoints.progress import Progress
from stages.settings.train import TrainSettings
from stages.training import loop
from stages.training.choices import with_choices
from tests.stages.experiments import mirrored, one_device, settings
from tests.stages.training.stopped import Stopper, run


@pytest.mark.slow
def test_a_resumed_run_keeps_its_steps_per_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Stopper, "log", lambda self, line: said.append(line))
    monkeypatch.setattr(loop, "PYTHON_SHARE", 1e9)  # any number of steps has a smaller one: a single step
    run(one_device(), tmp_path, 12, steps_per_call=None, checkpoint_every_steps=5)
    assert [line for line in said if line.startswith("train.steps_per_call=1: as many as")]
    assert [line for line in said if line.startswith("train.jit=off: XLA is slower")]
    said.clear()
    monkeypatch.setattr(loop, "PYTHON_SHARE", 1e-9)  # chosen again, it would be all steps of an epoch
    trained, _ = run(one_device(), tmp_path, steps_per_call=None)
    assert trained is not None
    assert "train.steps_per_call=1: as before" in said
    assert trained.record.params["steps_per_call"] == 1
    assert trained.record.summary["train"]["steps_per_call"] == 1
    assert trained.record.summary["train"]["jit"] == "off"


def test_settings_come_before_choices_and_other_devices_choose_again() -> None:
    where = one_device()
    chosen = Progress(
        choices={"devices": list(where.devices), "jit": "on", "jit_reason": "measured", "steps_per_call": 7}
    )

    def decided(given: TrainSettings, place: object = where) -> tuple[str, int | None]:
        kept = with_choices(given, chosen, place)  # type: ignore[arg-type]
        return kept.jit, kept.steps_per_call

    assert decided(settings()) == decided(settings(jit="measure")) == ("on", 7)
    assert decided(settings(jit="off", steps_per_call=3)) == ("off", 3)
    assert decided(settings(), mirrored(2)) == ("auto", None)
