"""Extensions from a package outside the repository, as docs/how-to/own-*.md show them.

The files come from the pages: each code block that begins with a comment that names a file becomes that file.
"""

import json
import re
import subprocess
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.experiment import read
from pipeline.launch.joined import Joined
from pipeline.launch.launcher import launcher_of
from stages.data.batches import training_input
from stages.settings.strategy import StrategySettings
from tests import commands
from tests.conftest import ROOT
from tests.stages.experiments import elements, real_digits

pytestmark = pytest.mark.slow


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Write the files of the pages; return their folder."""
    pages = "".join(page.read_text() for page in sorted((ROOT / "docs" / "how-to").glob("own-*.md")))
    blocks = re.findall(r"```(?:python|yaml)\n# (my_\S+)\n(.*?)```", pages, flags=re.DOTALL)
    assert len(blocks) == 21
    for name, content in blocks:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:  # a file may go on in a later block
            file.write(content)
    return tmp_path


def run(package: Path, *arguments: str, trains: bool = False) -> subprocess.CompletedProcess[str]:
    return commands.run("--config-dir", "my_conf", *arguments, cwd=package, trains=trains)


def test_extensions_of_the_page_run_together(package: Path, outputs: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "own-code.md").read_text()
    command = re.search(r"python -m pipeline --config-dir my_conf (.*?)\n```", page, flags=re.DOTALL)
    assert command is not None
    done = run(package, *command[1].replace("\\\n", " ").split(), f"outputs={outputs}", trains=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = outputs.glob("runs/*/*/summary.json")
    summary = json.loads(path.read_text())
    metrics = summary["metrics"]
    assert (summary["name"], list(summary["stages"])[7]) == ("stripes_tiny", "calibrate")
    error = json.loads((path.parent / "results" / "calibrate" / "error.json").read_text())
    assert error == metrics["val/calibration_error"] < 0.6
    assert f"calibrate   val/calibration_error {error:.4g}\n" in done.stdout
    assert metrics["test/accuracy"] > 0.9
    assert len(np.load(path.parent / "export" / "weights.npz")) == 6
    assert metrics["export/weights/max_abs_diff"] < 1e-5
    lines = [json.loads(line) for line in (outputs / "metrics.jsonl").read_text().splitlines()]
    assert any("val/accuracy" in line for line in lines)


def test_the_transform_of_the_page_changes_images_by_row(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    module = import_module("my_package.fog")
    dataset = module.fog(real_digits(40), module.FogSettings(most=0.5))
    plain, whole = (elements(training_input(data, 16, 3, 1)) for data in (real_digits(40), dataset))
    halves = elements(training_input(dataset, 16, 3, 1), replicas=2)
    shares = [
        (16 - new[0]).mean(axis=(1, 2, 3)) / (16 - old[0]).mean(axis=(1, 2, 3))
        for old, new in zip(plain, whole, strict=True)
    ]
    assert 0.5 <= np.concatenate(shares).min() < np.concatenate(shares).max() <= 1
    assert len(np.unique(np.concatenate(shares).round(6))) == 40
    np.testing.assert_array_equal(np.concatenate([part[0] for part in halves[:2]]), whole[0][0])


def test_settings_of_extensions_are_checked_and_named_in_errors(package: Path, tmp_path: Path) -> None:
    here = f"outputs={tmp_path}/outputs"
    for given, said in {
        "data.stripes=0": "data.stripes=0 is out of range. Expected at least 2",
        "+calibrate.binz=0": "unknown setting 'calibrate.binz'",
    }.items():
        words = ("data=stripes", "model=tiny", "pipeline=calibrated", "export=npz", given, here)
        done = run(package, *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_the_launcher_of_the_page_gives_each_process_its_task(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    given = ["cluster=ranks", "strategy=multi_worker", "cluster.options.members=[localhost:23461,localhost:23462]"]
    composed = Composer(read_arguments(["--config-dir", str(package / "my_conf"), *given])).one()
    own = read(composed.document, composed.choices, composed.config_dirs)
    strategy, launcher = own.of("strategy", StrategySettings), launcher_of(own)
    assert strategy is not None
    assert isinstance(launcher, Joined)
    for rank, address in enumerate(("localhost:23461", "localhost:23462")):
        monkeypatch.setenv("RANK", str(rank))
        task = launcher.task(strategy)
        assert (task.name, task.address, task.is_chief) == (f"worker-{rank}", address, rank == 0)


def test_losses_metrics_and_tasks_of_the_page_run(package: Path, outputs: Path) -> None:
    load_diabetes(as_frame=True).frame.rename(columns={"target": "price"}).to_csv(package / "houses.csv", index=False)
    page = (ROOT / "docs" / "how-to" / "own-task.md").read_text()
    commands_of_page = re.findall(r"python -m pipeline --config-dir my_conf (.*)", page)
    assert len(commands_of_page) == 2
    for command, name, metric in zip(commands_of_page, ("houses", "typical"), ("val/within", "test/mae"), strict=True):
        words = (*command.split(), f"name={name}", "train.epochs=3", "pipeline.export=null", "evaluate.baseline=false")
        done = run(package, *words, f"outputs={outputs}", trains=True)
        assert done.returncode == 0, done.stdout + done.stderr
        [path] = outputs.glob(f"runs/{name}/*/summary.json")
        summary = json.loads(path.read_text())
        assert metric in summary["metrics"]
        assert summary["facts"]["task"]["primary"] == {"houses": "rmse", "typical": "mae"}[name]
