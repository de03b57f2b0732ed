"""`debug=…`: short runs that check an experiment; they do not count as results, and real runs never use them."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.comparison.answer import choice, sentences
from pipeline.config.debug import debugged
from pipeline.config.experiment import Experiment
from pipeline.decide.decision import New, check, decide
from pipeline.decide.job import Job
from pipeline.provenance.identity import identity
from pipeline.runs.summary import Summary
from pipeline.sweep.index import compare, latest
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import experiment, tracked

pytestmark = pytest.mark.slow


def checked(*overrides: str, outputs: Path | None = None) -> Experiment:
    return debugged(experiment(*overrides, outputs=outputs))


@pytest.mark.smoke
def test_a_real_experiment_has_no_debug_settings() -> None:
    real = experiment()
    assert debugged(real) is real
    assert "debug" not in {*real.document, *real.choices}


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["fast", "overfit", "profile"])
def test_a_debug_run_has_a_different_identity_and_never_resumes(kind: str, tmp_path: Path) -> None:
    run = checked(f"debug={kind}", outputs=tmp_path)
    assert identity(run) != identity(experiment(outputs=tmp_path))
    assert run.resume == "never"
    assert run.document.debug.kind == run.choices["debug"] == kind
    check(run)


def test_a_long_warm_up_is_shortened_with_the_epochs(tmp_path: Path) -> None:
    words = ("schedule=cosine", "schedule.warmup_epochs=5", "train.early_stopping_patience=3")
    run = checked("debug=fast", "strategy=parameter_server", *words, outputs=tmp_path)
    check(run)
    train = run.settings["train"]
    assert (train.epochs, train.schedule.warmup_epochs) == (1, 0.5)
    assert list(run.pipeline)[:3] == ["strategy", "load", "shorten"]
    assert run.settings["evaluate"].batch_size == train.batch_size


def test_overfitting_has_no_augmentation_no_smoothing_and_no_early_stopping() -> None:
    run = checked("debug=overfit", "augment=strong", "train.label_smoothing=0.1", "train.early_stopping_patience=2")
    assert list(run.pipeline) == ["strategy", "load", "shorten", "normalize", "model", "train", "overfit"]
    train = run.settings["train"]
    assert (train.label_smoothing, train.early_stopping_patience, train.epochs) == (0.0, 0, 100)
    assert run.settings["shorten"]["same_batch"]


REFUSED = {
    "debug=fast fork=4d9eb298": "with resume, fork or from: a debug run starts from scratch",
    "debug=fast resume=4d9eb298": "debug=fast cannot be combined with resume",
    "debug=profile from=evaluate run=4d9eb298": "debug=profile cannot be combined with resume",
    "debug=overfit pipeline.train=null": "debug=overfit requires the project's own stage train",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_impossible_debug_runs_are_refused_in_one_line(overrides: str) -> None:
    with pytest.raises(UserError, match=REFUSED[overrides]) as refused:
        checked(*overrides.split())
    assert "\n" not in str(refused.value)


def test_a_search_is_refused(pipeline_command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    space = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
    done = pipeline_command("sweep=random", "debug=fast", space, trains=False)
    assert done.returncode == 2
    message = "debug=fast cannot be used in a search.*-m debug=fast optimizer.learning_rate=<value>,<value>"
    assert re.search(message, done.stderr)


@pytest.fixture(scope="module")
def sweep(module_outputs: Path) -> tuple[Path, str]:
    """The outputs of a sweep of debug runs, one of them with several processes, and the printed text."""
    done = commands.succeed(
        "-m", "debug=fast", "strategy=one_device,multi_worker", "model.network.filters=[8]",
        "export.register=digits", "export.alias=champion", f"outputs={module_outputs}", cwd=module_outputs,
    )  # fmt: skip
    return module_outputs, done.stdout


def test_all_stages_run_under_every_strategy_and_agree(sweep: tuple[Path, str]) -> None:
    summaries = [Summary.read(path.parent) for path in sorted(latest(sweep[0]).glob("*/summary.json"))]
    assert [summary.status for summary in summaries] == ["FINISHED"] * 2
    assert all(stage.status == "ran" for summary in summaries for stage in summary.stages.values())
    one, both = (summary.metrics["test/loss"] for summary in summaries)
    assert both == pytest.approx(one, abs=1e-5)
    assert [summary.facts.data and summary.facts.data.train_examples for summary in summaries] == [64 + 13] * 2


def test_debug_runs_are_marked_and_never_registered(sweep: tuple[Path, str]) -> None:
    client, runs = tracked(sweep[0])
    assert [run.data.tags["debug"] for run in runs] == ["fast"] * 3
    assert list(client.search_registered_models()) == []


def test_no_debug_run_is_best(sweep: tuple[Path, str]) -> None:
    comparison = compare(latest(sweep[0]))
    assert comparison.best is None
    assert choice(comparison).startswith("No winner: debug runs")
    assert sentences(comparison) == []
    assert "No winner: debug runs" in sweep[1]


def test_no_run_starts_from_a_debug_run(sweep: tuple[Path, str]) -> None:
    """Not even from an interrupted one."""
    outputs = sweep[0]
    path = sorted(latest(outputs).glob("*one_device*/summary.json"))[0]
    content = path.read_text()
    try:
        path.write_text(json.dumps({**json.loads(content), "status": "KILLED"}))
        for option in ("resume", "fork"):
            with pytest.raises(UserError, match=f"{option}=.* is a debug run"):
                decide(Job(experiment(f"{option}='{path.parent}'", outputs=outputs)))
        assert decide(Job(checked("debug=fast", outputs=outputs))).start == New()
    finally:
        path.write_text(content)
