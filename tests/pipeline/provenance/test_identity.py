"""A run is resumed only with unchanged code: the package of each `_target_` counts, but not what it imports."""

import hashlib
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.paths import CONF
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import refuse_edited, sources
from stages.errors import UserError
from tests.pipeline.experiments import Patch, experiment, write_files

pytestmark = pytest.mark.slow

NETWORK = "model.network={_target_: %s}"
DEEP = "train.callbacks=[{_target_: keras.callbacks.Callback, parts: [{deep: {_target_: %s}}]}]"
TARGETS = (NETWORK, "train._target_=%s", DEEP)
"""Settings that may name code."""


@pytest.fixture
def place(own_code: Path) -> Path:
    """A folder on the module path with a user's code."""
    parts = {"__init__.py": "", "net.py": "import own_sibling\nimport numpy\n", "parts/unused.py": "x = 1\n"}
    package = {f"own_package/{name}": text for name, text in {**parts, "tables/classes.json": "[]\n"}.items()}
    write_files(own_code, {**package, "own_sibling.py": "x = 1\n"})
    return own_code


def test_a_script_counts_and_code_in_a_notebook_always_differs(place: Path, monkeypatch: Patch) -> None:
    given, main = experiment(NETWORK % "__main__.net"), ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert sources(given).digest != sources(given).digest
    main.__file__ = str(place / "own_sibling.py")
    assert "own_sibling.py" in str(sources(given).files)
    assert sources(given).digest == sources(given).digest


def test_a_process_runs_the_code_that_it_records(place: Path) -> None:
    given, path = experiment(NETWORK % "own_package.parts.unused.tiny"), place / "own_package/parts/unused.py"
    module = importlib.import_module("own_package.parts.unused")
    refuse_edited(sources(given))
    path.write_text("x = 23\n")
    with pytest.raises(UserError, match=r"unused.py was edited .* Try: importlib.reload\(own_package.parts.unused\)"):
        refuse_edited(sources(given))
    importlib.reload(module)
    refuse_edited(sources(given))


@pytest.mark.parametrize("setting", TARGETS)
def test_the_package_of_a_target_counts_and_is_named(setting: str, place: Path) -> None:
    given = experiment(setting % "own_package.net.tiny")
    for path in sorted(place.rglob("*.*")):
        before = sources(given)
        before.write(place)
        path.write_text(path.read_text() + "\n")
        after = sources(given)
        name = path.relative_to(place).as_posix()
        if not name.startswith("own_package/"):  # its imports do not count
            assert after.digest == before.digest
        else:
            assert after.digest != before.digest, name
            assert after.changed(place) == name


@pytest.mark.smoke
def test_a_single_module_counts_without_its_neighbors(place: Path) -> None:
    given = experiment(NETWORK % "own_sibling.tiny")
    before = sources(given).digest
    (place / "own_package" / "net.py").write_text("changed = 1\n")
    assert sources(given).digest == before
    (place / "own_sibling.py").write_text("changed = 1\n")
    assert sources(given).digest != before


def test_files_that_are_not_code_do_not_count(place: Path) -> None:
    package = place / "own_package"
    given = experiment(NETWORK % "own_package.net.tiny", outputs=package)
    before = sources(given).digest
    hidden = ("__pycache__/x.py", ".git/config.yaml", ".net.py.swp")
    write_files(package, dict.fromkeys((*hidden, "runs/a/b/config.yaml", "cache/k/facts.json", "a.log"), "x"))
    assert sources(given).digest == before


def test_a_users_package_counts_wherever_it_is(tmp_path: Path, monkeypatch: Patch) -> None:
    """It may be in the working directory, installed, or linked from site-packages; its version need not change."""
    installed, here = tmp_path / "env/lib/site-packages", tmp_path / "here"
    places = {"own_here": here, "own_dist": installed, "own_linked": tmp_path / "elsewhere"}
    for name, folder in places.items():
        write_files(folder, {f"{name}/__init__.py": "x = 1\n"})
    (installed / "own_linked").symlink_to(tmp_path / "elsewhere" / "own_linked")
    monkeypatch.chdir(here)
    for path in (installed, ""):
        monkeypatch.syspath_prepend(path)
    for name, folder in places.items():
        given = experiment(NETWORK % f"{name}.x")
        before = sources(given).digest
        (folder / name / "__init__.py").write_text("x = 2\n")
        assert sources(given).digest != before, name


def test_added_folders_of_configuration_count(tmp_path: Path) -> None:
    """The file of a sweep does not count: its values are in the identity of the sweep, or may change, like `trials`."""
    write_files(tmp_path, {"sweep/mine.yaml": "trials: 2\n", "model/tiny.yaml": "a: 1\n"})
    given = replace(experiment(), config_dirs=(tmp_path,))
    before = sources(given).digest
    for name, is_code in (("plot.png", False), ("sweep/mine.yaml", False), ("model/tiny.yaml", True)):
        write_files(tmp_path, {name: "trials: 3\n"})
        assert (sources(given).digest != before) is is_code, name


def test_the_files_of_this_project_count() -> None:
    files = sources(experiment()).files
    for name in ("conf/config.yaml", "pipeline/__main__.py", "stages/training/step.py"):
        assert files[name] == hashlib.sha256((CONF.parent / name).read_bytes()).hexdigest()[:16]


def test_a_preset_of_keras_hub_counts_by_its_content(tmp_path: Path) -> None:
    def identity_of(name: str, content: str) -> str:
        write_files(tmp_path / name, {"config.json": "{}", "model.weights.h5": content})
        return identity(experiment("model=keras_hub", f"model.network.preset={tmp_path / name}"))

    assert identity_of("one", "a") == identity_of("moved", "a") != identity_of("other", "b")
