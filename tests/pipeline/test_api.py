"""The Python API: every way to read a real run, and lists of runs."""

import gc
import json
import math
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.api import Run, compare, compose, open_run, run_experiment, search, sweep
from pipeline.command_line.command import print_warning
from pipeline.commands import diff, runs
from pipeline.comparison.difference import Pair, difference
from pipeline.runs.lock import locked
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import SMALL, TRAINED, Patch, Printed, write_files, write_run


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def run(outputs: Path) -> Run:
    kept, drawn = gc.get_freeze_count(), random.getstate()
    made = run_experiment(["model=mlp", "train.epochs=2", "name=from_python", f"outputs={outputs}"])
    assert gc.get_freeze_count() <= kept, "garbage of a notebook would never be collected"
    assert random.getstate() == drawn, "it would draw the same after each run"
    return made


def refuses(settings: object) -> None:
    raise UserError("the data is gone", "it to be there")


@pytest.mark.slow
def test_a_sweep_raises_the_error_of_the_first_job_that_failed(tmp_path: Path, capsys: Printed) -> None:
    """Its process reports it in addition to the lines that it prints."""
    with pytest.raises(RuntimeError, match=r"^1 of 1 jobs have not finished; job 1 FAILED: the data is gone"):
        sweep([f"data._target_={__name__}.refuses", *SMALL, *TRAINED, "tracking=off", f"outputs={tmp_path}"])
    assert "job 1/1  the only job  FAILED in " in capsys.readouterr().out


def listed(capsys: Printed, outputs: Path, *arguments: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert runs.main([*arguments, "--json", f"--outputs={outputs}"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert isinstance(entries, list)
    return entries


def test_a_search_without_an_interval_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^sweep=tpe.*no setting has several values") as refused:
        search(["train.epochs=1"])
    assert refused.value.fix == "'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'"
    with pytest.raises(UserError, match=r"^sweep=random"):
        search(["sweep=random"])
    with pytest.raises(UserError, match="hydra"):
        sweep(["hydra.run.dir=x"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("by_script", [True, False])
def test_code_is_found_where_this_process_finds_it_or_where_the_command_is_typed(
    by_script: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "lib", {"own_arrays.py": "def load():\n    return None\n"})
    words = ["data=arrays", "data._target_=own_arrays.load", "seed=1,2", "dry_run=true"]
    if by_script:
        command = [str(Path(sys.executable).with_name("tf-pipeline")), "-m", *words]
        assert subprocess.run(command, cwd=tmp_path / "lib", capture_output=True).returncode == 0
    else:
        monkeypatch.syspath_prepend(tmp_path / "lib")
        with pytest.raises(UserError, match="dry_run=true starts no jobs"):
            sweep(words)


@pytest.mark.slow
def test_a_notebook_shows_a_run_and_a_comparison(run: Run, outputs: Path) -> None:
    shown = run._repr_html_()
    assert f"<th>run</th><td>{run.summary.run_id}  FINISHED</td>" in shown
    assert '<img src="data:image/png;base64,' in shown
    compared = compare(run.folder, outputs=outputs)
    page, table = compared._repr_html_(), str(compared)
    assert max(len(line) for line in table.splitlines() if not line.startswith("run it")) <= 80
    assert f"{run.metrics['test/accuracy']:.2%}".rstrip("%") in table
    assert page.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert f"{run.metrics['test/accuracy']:.2%}".rstrip("%") in page


@pytest.mark.slow
def test_a_run_is_read_as_it_was_recorded(run: Run) -> None:
    assert run.status == "FINISHED"
    assert '"command": "python -m pipeline model=mlp train.epochs=2 name' in (run.folder / "tracking.jsonl").read_text()
    assert run.config.train.epochs == compose(["train.epochs=2"]).settings["train"].epochs == 2
    assert list(run.history.index) == [1, 2]
    assert run.history["val/loss"].iloc[-1] == run.metrics["val/loss"]
    assert run.history["val/loss"].min() == run.metrics["val/best_loss"]
    before, checkpoints = run.history, run.folder / "checkpoints"
    checkpoints.rename(run.folder / "cleaned")
    assert before.equals(run.history[before.columns]), "without checkpoints, from the journal"
    (run.folder / "cleaned").rename(checkpoints)
    probabilities = run.load_model()([[[[0.0]] * 8] * 8]).numpy()
    assert probabilities.shape == (1, 10)
    assert math.isclose(probabilities.sum(), 1.0, rel_tol=1e-6)


@pytest.mark.slow
def test_a_run_that_is_resumed_with_another_strategy_is_returned(run: Run, tmp_path: Path) -> None:
    stopped = shutil.copytree(run.folder, tmp_path / "runs" / "from_python" / "stopped")
    replace(run.summary, status="KILLED").write(stopped)
    words = [f"resume={stopped}", "strategy=default", "tracking=off", f"outputs={tmp_path}"]
    assert (run_experiment(words).folder, Run(stopped).status) == (stopped, "FINISHED")


@pytest.mark.slow
def test_a_run_is_found_by_folder_name_and_id(run: Run, outputs: Path) -> None:
    for text in (run.folder, run.folder.name, run.summary.run_id, (run.summary.run_id or "")[:6]):
        assert open_run(str(text), outputs) == run
    with pytest.raises(UserError, match="matches no run in"):
        open_run("ffffffff", outputs)


def test_a_wrong_override_is_refused_as_on_the_command_line() -> None:
    with pytest.raises(UserError, match=r"train\.epochs"):
        compose(["trian.epochs=2"])
    with pytest.raises(UserError, match="defines several jobs"):
        compose(["-m", "seed=1,2"])
    for several in ("sweep=seeds", "+sweep.over.seed=[1,2]"):
        with pytest.raises(UserError, match=f"{re.escape(several)} defines several jobs"):
            run_experiment([several])
    with pytest.raises(UserError, match="dry_run=true starts no run"):
        run_experiment("dry_run=true")


def test_a_text_is_one_override_and_values_are_python_objects(tmp_path: Path) -> None:
    for epochs in (2, 3):
        write_run(tmp_path / f"runs/a/{epochs}", overrides=[f"train.epochs={epochs}"], metrics={"test/loss": 1.0})
    found = compare("status=FINISHED", baseline={"train.epochs": 2}, columns="test/loss", outputs=tmp_path)
    assert (found.baseline, found.own_columns) == (found.rows[0], ["test/loss"])
    with pytest.raises(UserError, match="dry_run=true starts no jobs"):
        sweep(["dry_run=true", "seed=1,2", f"outputs={tmp_path}"])


@pytest.mark.slow
def test_the_overrides_of_a_named_run_are_inherited_as_on_the_command_line(run: Run, outputs: Path) -> None:
    forked = compose([f"fork={run.folder}", "train.epochs=5", f"outputs={outputs}"])
    assert (forked.name, forked.settings["train"].epochs) == ("from_python", 5)
    reused = compose(["from=evaluate", f"run={run.folder}", f"outputs={outputs}"])
    assert (reused.name, reused.settings["train"].epochs) == ("from_python", 2)


@pytest.mark.slow
def test_the_table_shows_and_filters_runs(run: Run, outputs: Path, capsys: Printed) -> None:
    [entry] = listed(capsys, outputs)
    assert entry["status"] == "FINISHED"
    assert entry["folder"] == str(run.folder)
    assert entry["metrics"] == run.metrics
    settings = ("model=mlp", "train.epochs=2.0", "train.epochs>1", "seed=42", "deterministic=False", "fork=null")
    for matching in ("status=FINISHED", *settings, "debug=none", "test/accuracy>0", "seconds<9999", "from_python"):
        assert listed(capsys, outputs, matching) == [entry], matching
    for other in ("status=FAILED", "model=cnn", "test/accuracy>1", "seed=43", "fork>1"):
        assert listed(capsys, outputs, other) == [], other
    for wrong in ("nope=1", "nope>1", "test/accuracy>much", "nothing_like_it"):
        assert runs.main([wrong, f"--outputs={outputs}"]) == 2
        assert capsys.readouterr().err.startswith("error: "), wrong
    assert runs.main([f"--outputs={outputs}"]) == 0
    assert "from_python" in capsys.readouterr().out


def test_a_run_is_running_only_while_a_process_works_on_it(tmp_path: Path, capsys: Printed) -> None:
    folder = write_run(tmp_path / "runs" / "digits" / "20260101-000000-abcd", "RUNNING")
    assert [entry["status"] for entry in listed(capsys, tmp_path)] == [Run(folder).status] == ["INTERRUPTED"]
    with locked(folder):
        assert [entry["status"] for entry in listed(capsys, tmp_path)] == [Run(folder).status] == ["RUNNING"]
    assert [entry["status"] for entry in listed(capsys, tmp_path)] == ["INTERRUPTED"]


def differences(outputs: Path, *folders: Path) -> tuple[int, dict[str, dict[str, Pair]]]:
    code = diff.main([*map(str, folders), f"--outputs={outputs}"])
    first, second = (Run(folder).summary for folder in folders)
    return code, difference(first, second, print_warning)


@pytest.mark.slow
def test_the_difference_of_two_runs_is_what_was_changed(run: Run, outputs: Path, tmp_path: Path) -> None:
    sections = ("settings", "code", "packages", "data", "metrics", "measurements")
    assert differences(outputs, run.folder, run.folder) == (0, {name: {} for name in sections})
    other = tmp_path / run.folder.name
    shutil.copytree(run.folder, other)
    config = (other / "config.yaml").read_text().replace("epochs: 2", "epochs: 3")
    (other / "config.yaml").write_text(config)
    code = json.loads((other / "code.json").read_text())
    (other / "code.json").write_text(json.dumps({**code, "stages/model.py": "changed", "own/net.py": "new"}))
    facts = replace(run.summary.facts, fingerprint="of-other-data")
    summary = replace(run.summary, versions={**run.summary.versions, "keras": "0.1"}, facts=facts)
    summary.metrics["val/loss"] += 1.0
    summary.write(other)
    code, found = differences(outputs, run.folder, other)
    assert (code, found["settings"]["train.epochs"]) == (1, (2, 3))
    assert set(found["code"]) == {"stages/model.py", "own/net.py"}
    assert list(found["packages"]) == ["keras"]
    assert list(found["metrics"]) == ["val/loss"]
    [[before, after]] = found["data"].values()
    assert before != after == "of-other-data"
    assert diff.main([str(run.folder), "ffffffff", f"--outputs={outputs}"]) == 2


NOTEBOOK = """
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
import numpy as np
import tensorflow as tf
from pipeline.api import run_experiment
from pipeline.runs.finding import Runs
from stages.errors import UserError
from tests.pipeline.experiments import SMALL, TRAINED

def attempt(words):
    try:
        return run_experiment(words)
    except UserError as error:
        print("refused:", error, flush=True)

def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    return np.zeros((100, 3)), np.arange(100) % 2

def stuck():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
    while True:
        time.sleep(0.05)

if __name__ == "__main__":
    given = [*SMALL, *TRAINED, f"outputs={sys.argv[1]}", "tracking=off", "train.epochs=1"]
    tf.constant(1.0) + 1.0  # as a notebook that has used TensorFlow
    for strategy in ("mirrored", "central_storage", "model_parallel"):
        attempt([*given, f"strategy={strategy}"])
    fork = multiprocessing.get_context("fork").Process(target=attempt, args=(given,))
    fork.start()
    fork.join()
    print("ended:", run_experiment([*given, "strategy=multi_worker"]).status)
    for source in ("interrupted", "stuck"):  # by one Ctrl-C, and by a second Ctrl-C
        try:
            run_experiment(["data=arrays", f"data._target_=notebook.{source}", *given[-3:]])
        except KeyboardInterrupt:
            print(source, sum(run.status == "KILLED" for run in Runs(Path(sys.argv[1])).all()))
"""


@pytest.mark.slow
def test_a_process_that_has_used_tensorflow_runs_clusters_and_refuses_more_devices(tmp_path: Path) -> None:
    """Members of a cluster are separate processes. Errors are reported before anything is recorded."""
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = commands.run(str(tmp_path / "outputs"), module="notebook", cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert sum("needs 2 logical CPU devices, but TensorFlow has already started with 1" in line for line in lines) == 3
    assert any("this process was forked after TensorFlow had been used" in line for line in lines)
    assert "ended: FINISHED" in lines
    assert lines[-1] == "stuck 2"
    assert "interrupted 1" in lines
    assert len([*(tmp_path / "outputs").glob("runs/*/*")]) == 3


def test_settings_of_keras_in_a_notebook_do_not_change_a_run_and_are_restored_afterwards(
    run: Run, outputs: Path
) -> None:
    """The same is true for a user's `keras.json`, which Keras reads when it is imported."""
    import keras
    import numpy as np
    import tensorflow as tf

    usual = {"floatx": "float16", "epsilon": 0.01, "image_data_format": "channels_first"}
    before = {name: getattr(keras.config, name)() for name in (*usual, "dtype_policy")}
    errors = np.geterr()
    try:
        for name, value in {**usual, "dtype_policy": "mixed_bfloat16"}.items():
            getattr(keras.config, f"set_{name}")(value)
        np.seterr(all="raise")
        tf.config.run_functions_eagerly(True)
        again = run_experiment(["model=mlp", "train.epochs=2", "name=again", "pipeline.export=null",
                                "tracking=off", f"outputs={outputs}"])  # fmt: skip
        assert {name: getattr(keras.config, name)() for name in usual} == usual
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        assert (np.geterr()["over"], tf.config.functions_run_eagerly()) == ("raise", True)
    finally:
        tf.config.run_functions_eagerly(False)
        np.seterr(**errors)
        for name, value in before.items():
            getattr(keras.config, f"set_{name}")(value)
    numbers = {name: value for name, value in again.metrics.items() if name.startswith(("train/", "val/", "test/"))}
    for name, value in numbers.items():
        if "second" not in name and "wait" not in name and "latency" not in name:
            assert value == run.metrics[name], name
    said = (again.folder / "pipeline.log").read_text()
    assert "keras.config.floatx is float16 in this process; the run uses float32" in said
