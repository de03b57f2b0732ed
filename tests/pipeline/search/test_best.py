"""The command that a search prints at its end: a single run with the settings of the best trial."""

import shlex
from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composed, Composer
from pipeline.comparison.answer import command_of
from pipeline.comparison.rows import read_job
from pipeline.config.experiment import Experiment, read
from pipeline.provenance.identity import identity
from pipeline.sweep.jobs import SweepJob
from tests.pipeline.experiments import SMALL, write_files

RATE = "optimizer.learning_rate"
DRAWN = f"{RATE}=tag(log,interval(1e-4,1e-1))"

EXPERIMENT = """# @package _global_
defaults:
  - /own: more
  - override /data: synthetic
  - override /model: mlp
  - override /sweep: {sweep}
  - _self_
data: {{height: 8, width: 8, examples: 300}}
train: {{epochs: 2}}
optimizer: {{learning_rate: 0.5}}
precision: {{layers: {{"dense_*": float32}}}}
tracking: {{tags: {{team.name: vision, own: "${{oc.env:HOME}}", api_key: kZq8x71m1}}}}
sweep: {over}
"""

OVER = "{over: {optimizer.learning_rate: 'tag(log,interval(1e-4,1e-1))'}}"

WAYS: dict[str, tuple[str, ...]] = {
    "typed": ("sweep=tpe", DRAWN, *SMALL),
    "experiment file": ("experiment=mine",),
    "sweep file in an experiment file": ("experiment=group",),
    "custom stage and options": (
        "sweep=tpe", DRAWN, "+pipeline.extra=report", "+extra={_target_: tests.own.stage, a.b: 1}", "+own=more",
        "export=all", "~export.formats.onnx", "pipeline.inspect=null",
    ),
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder with custom options."""
    folder = tmp_path / "own conf"
    options = {
        "experiment/mine.yaml": EXPERIMENT.format(sweep="tpe", over=OVER),
        "experiment/group.yaml": EXPERIMENT.format(sweep="own", over="{trials: 3}"),
        "sweep/own.yaml": f"defaults:\n- tpe\n- _self_\nover:\n  {RATE}: interval(0.1,1)\n",
        "own/more.yaml": "# @package _global_\ntrain: {label_smoothing: 0.1}\n",
    }
    write_files(folder, options)
    return folder


def read_composed(composed: Composed) -> Experiment:
    return read(composed.document, composed.choices, composed.config_dirs, composed.overrides)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_printed_command_trains_one_run_with_the_very_settings_of_the_best_trial(
    way: str, own: Path, tmp_path: Path
) -> None:
    words = [*WAYS[way], f"outputs='{tmp_path / 'out puts'}'", "--config-dir", str(own)]
    composer = Composer(read_arguments(words))
    assert composer.is_sweep
    varying = [override for override in composer.of_jobs if override.is_sweep_override()]
    values = [f"{one.get_key_element()}={0.25 if one.is_interval_sweep() else 'mlp'}" for one in varying]
    trial = composer.with_lines(values)
    job = read_composed(trial)
    made = SweepJob(1, "", job)
    typed = shlex.split(command_of(read_job(1, tmp_path / made.folder, made.entry)))
    assert typed[:3] == ["python", "-m", "pipeline"]
    again = Composer(read_arguments(typed[3:]))
    assert not again.is_sweep
    best = read_composed(again.one())
    assert identity(best) == identity(job)
    assert (best.name, best.outputs, best.pipeline) == (job.name, job.outputs, job.pipeline)
    assert best.tracking == job.tracking
    assert best.settings["train"].optimizer.learning_rate == 0.25
