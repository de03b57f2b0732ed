"""A run is resumed by the code that began it: the package of each `_target_` counts, and what it imports does not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.paths import CONF
from pipeline.planning.earlier import resolve
from pipeline.planning.job import Job
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.run_folder.summary import Summary
from tests.pipeline.experiments import experiment

pytestmark = pytest.mark.slow

ROOT = CONF.parent

TARGETS = {
    "network": "model.network={_target_: %s}",
    "stage": "train._target_=%s",
    "data source": "data._target_=%s",
    "callback": "train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}, {_target_: %s, inner: [{a: 1}]}]",
    "nested": "train.callbacks=[{_target_: keras.callbacks.Callback, parts: [{deep: {_target_: %s}}]}]",
}
"""Where a configuration may name code."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of modules that holds a user's own code."""
    folder = tmp_path / "own"
    files = {
        "own_package/__init__.py": "",
        "own_package/net.py": "import own_sibling\nfrom . import parts\nimport numpy\n",
        "own_package/parts/__init__.py": "def part(): import own_late\n",
        "own_package/parts/unused.py": "x = 1\n",
        "own_package/settings.yaml": "a: 1\n",
        "own_package/tables/classes.json": "[]\n",
        "own_sibling.py": "from own_far.deep import x\n",
        "own_far/deep/x.py": "import importlib\nimportlib.import_module('own_named')\n",
        "own_late.py": "x = 1\n",
        "own_named.py": "x = 1\n",
        "unrelated.py": "x = 1\n",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def code(target: str = "own_package.net.tiny", kind: str = "network", outputs: Path | None = None) -> Sources:
    return sources(experiment(TARGETS[kind] % target, outputs=outputs))


@pytest.mark.parametrize("kind", TARGETS)
def test_the_package_of_a_target_counts_and_is_named(kind: str, place: Path) -> None:
    given = experiment(TARGETS[kind] % "own_package.net.tiny")
    for path in sorted(place.rglob("*.*")):
        before = sources(given)
        before.write(place)
        path.write_text(path.read_text() + "\n")
        after = sources(given)
        name = path.relative_to(place).as_posix()
        if not name.startswith("own_package/"):  # what it imports is not followed
            assert after.digest == before.digest
        else:
            assert after.digest != before.digest, name
            assert after.changed(place) == name


@pytest.mark.smoke
def test_new_and_deleted_files_count(place: Path) -> None:
    given = experiment(TARGETS["network"] % "own_package.net.tiny")
    digests = [sources(given).digest]
    (place / "own_package" / "new.py").write_text("")
    digests.append(sources(given).digest)
    (place / "own_package" / "settings.yaml").unlink()
    digests.append(sources(given).digest)
    assert len(set(digests)) == 3


def test_a_module_alone_counts_without_what_lies_beside_it(place: Path) -> None:
    before = code("own_sibling.tiny")
    (place / "own_package" / "net.py").write_text("changed = 1\n")
    assert code("own_sibling.tiny").digest == before.digest
    (place / "own_sibling.py").write_text("changed = 1\n")
    assert code("own_sibling.tiny").digest != before.digest


def test_what_is_no_code_never_counts(place: Path) -> None:
    package = place / "own_package"
    before = code(outputs=package).digest
    for name in (
        "__pycache__/net.cpython-311.pyc", "__pycache__/x.py", ".git/config.yaml", ".venv/x.py", ".net.py.swp",
        "runs/a/b/config.yaml", "sweeps/a/sweep.json", "cache/k/facts.json", "artifacts/1/x.yaml", "mlflow.db", "a.log",
        "notes.md", "image.png", "model.keras",
    ):  # fmt: skip
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x")
    assert code(outputs=package).digest == before


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed package, of another environment that is on the path."""
    folder = tmp_path / "env/lib/site-packages"
    folder.mkdir(parents=True)
    (folder / "own_dist.py").write_text("import own_not_looked_at\n")
    monkeypatch.syspath_prepend(folder)
    return folder


def test_wherever_the_own_package_lies(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the working directory, by a link from site-packages, in a zip archive."""
    import zipfile

    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "own_linked").mkdir(parents=True)
    (elsewhere / "own_linked" / "__init__.py").write_text("x = 1\n")
    (elsewhere / "own_here.py").write_text("x = 1\n")
    with zipfile.ZipFile(elsewhere / "own.zip", "w") as archive:
        archive.writestr("own_zipped.py", "x = 1\n")
    (installed / "own_linked").symlink_to(elsewhere / "own_linked")
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend("")
    monkeypatch.syspath_prepend(str(elsewhere / "own.zip"))
    for target, path in {
        "own_linked.x": elsewhere / "own_linked" / "__init__.py",
        "own_here.x": elsewhere / "own_here.py",
        "own_zipped.x": elsewhere / "own.zip",
    }.items():
        given = experiment(TARGETS["network"] % target)
        before = sources(given).digest
        path.write_bytes(path.read_bytes() + b"\n")
        assert sources(given).digest != before, target


def test_an_installed_package_counts_by_its_content(installed: Path) -> None:
    """Its version stays while it is worked on."""
    given = experiment(TARGETS["callback"] % "own_dist.Watch")
    before = sources(given).digest
    (installed / "own_dist.py").write_text("changed = 1\n")
    assert sources(given).digest != before


def test_added_folders_of_configuration_count(tmp_path: Path) -> None:
    option = tmp_path / "my_conf" / "model" / "tiny.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("a: 1\n")
    given = replace(experiment(), config_dirs=(tmp_path / "my_conf",))
    before = sources(given)
    (tmp_path / "my_conf" / "plot.png").write_text("x")
    assert sources(given).digest == before.digest
    option.write_text("a: 2\n")
    assert sources(given).digest != before.digest


def test_the_digest_is_cheap_and_equal_in_every_process(place: Path) -> None:
    given = experiment(TARGETS["network"] % "own_package.net.tiny")
    mine, began = sources(given), time.process_time()
    assert sources(given).digest == mine.digest
    assert time.process_time() - began < 0.5
    target = TARGETS["network"] % "own_package.net.tiny"
    script = (  # without TensorFlow, which this process has imported
        "from pipeline.provenance.source_digest import sources\nfrom tests.pipeline.experiments import experiment\n"
        f"print(sources(experiment({target!r})).digest)"
    )
    variables = {**os.environ, "PYTHONPATH": f"{place}:{ROOT}", "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=variables, check=True)
    assert done.stdout.strip() == mine.digest


def killed(given: Experiment) -> Path:
    """Leaves behind what a run of `given` that was stopped does."""
    folder = given.outputs / "runs" / given.name / "20260101-000000-aaaaaaaa"
    folder.mkdir(parents=True)
    own = sources(given)
    own.write(folder)
    Summary(None, "KILLED", given.name, str(folder), {}, identity=identity(given), code=own.digest).write(folder)
    return folder


def test_the_same_command_begins_a_new_run_where_own_code_has_changed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = experiment(TARGETS["network"] % "own_package.net.tiny", outputs=tmp_path / "outputs")
    folder = killed(given)
    assert resolve(Job(given), Console()).folder == folder
    (place / "own_package" / "parts" / "unused.py").write_text("x = 2\n")
    assert resolve(Job(given), Console()).folder is None
    printed = " ".join(capsys.readouterr().out.split())
    assert "the code has changed since" in printed
    assert "was stopped (own_package/parts/unused.py): a new run" in printed


def test_a_project_without_git_is_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a wheel is: its files count by their content, too."""
    import shutil

    for name in ("pipeline", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("pipeline.provenance.source_digest._HERE", tmp_path)
    given = experiment()
    before = sources(given)
    (tmp_path / "stages" / "step.py").write_text("x = 1\n")
    assert sources(given).digest != before.digest


def test_a_preset_of_keras_hub_counts_by_its_content(tmp_path: Path) -> None:
    def identity_of(name: str, content: str) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.weights.h5").write_text(content)
        return identity(experiment("model=keras_hub", f"model.network.preset={tmp_path / name}"))

    assert identity_of("one", "a") == identity_of("moved", "a") != identity_of("other", "b")
