"""The structure of the code: allowed imports, names of modules, and the contents of a wheel."""

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import commands
from tests.chaos.mutations import MUTATIONS
from tests.conftest import COLLECTED, ROOT

CODE = [path for folder in ("pipeline", "stages") for path in (ROOT / folder).rglob("*.py")]

VOCABULARY = ("declared", "errors", "metrics", "reporter", "results", "reuse", "seeds", "settings", "tables", "targets")
"""Modules of `stages` that every folder and every stage may import, and that import none of them."""

CONTRACTS = (
    "augmentations.transforms",
    "data.columns",
    "data.split",
    "features.images",
    "features.kinds",
    "tasks.parts",
    "tasks.task",
)
"""Modules in folders that also belong to the vocabulary, because all of the code exchanges their objects."""

SHARED = (
    ("storage", "augmentations"), ("plots",), ("tasks", "features"), ("data", "collectives"), ("networks",),
    ("transfer", "optimization"), ("evaluation", "checkpoints"), ("callbacks",), ("training", "exporters"),
)  # fmt: skip
"""Layers of the folders of `stages` that stages share, the lowest first."""


def stages_and_their_folders() -> tuple[str, ...]:
    """Return the names above the shared folders: each module is a stage, each folder has the options of a stage."""
    paths = [path for path in (ROOT / "stages").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    names = {path.stem for path in paths}
    return tuple(sorted(names - {"__init__", *VOCABULARY, *(name for layer in SHARED for name in layer)}))


LAYERS = {
    "stages": (VOCABULARY, *SHARED, stages_and_their_folders()),
    "pipeline": (
        ("exit_codes", "internals", "paths", "records"), ("redaction", "system"), ("console", "targets"), ("config",),
        ("runs",), ("command_line", "tracking"), ("checks", "provenance"), ("decide",), ("execute",), ("launch",),
        ("comparison",), ("sweep",), ("search", "serving"), ("api", "commands"), ("__main__",),
    ),
}  # fmt: skip
"""The layers of each package, the lowest first. A folder or module imports only from lower layers and from itself."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def named(path: Path) -> str:
    """Return the path of a module, for messages."""
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Return the top-level packages that a module imports, also within functions."""
    nodes = nodes_of(path)
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.partition(".")[0] for name in plain | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}}


def part_of(module: str) -> str:
    """Return the folder or top-level module of a dotted name, such as `data` for `stages.data.splits`."""
    name = module.partition(".")[2]
    return name if name in CONTRACTS else name.partition(".")[0]


def parts_imported(path: Path, package: str) -> set[str]:
    """Return the folders and top-level modules of `package` that the module at `path` imports."""
    parts = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            parts |= {part_of(alias.name) for alias in node.names if alias.name.startswith(f"{package}.")}
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            parts |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            parts.add(part_of(node.module or ""))
    return parts


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_is_in_a_layer(package: str) -> None:
    parts = {path.relative_to(ROOT / package).parts[0].removesuffix(".py") for path in (ROOT / package).rglob("*.py")}
    assert parts - {"__init__"} == {name for layer in LAYERS[package] for name in layer}


def test_modules_import_only_from_lower_layers() -> None:
    """They also import from their own folder. So stages do not import each other, and folders have no import cycles."""
    upward = []
    for path in CODE:
        package = path.relative_to(ROOT).parts[0]
        own = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        level = {name: number for number, layer in enumerate(LAYERS[package]) for name in layer}
        level |= dict.fromkeys(CONTRACTS, 0)
        vocabulary = {*VOCABULARY, *CONTRACTS}
        for other in parts_imported(path, package) - {own}:
            below = level[other] < level[own] or {own, other} <= vocabulary
            if not (own == "__init__" or below):
                upward.append(f"{named(path)} imports {other}")
    assert not upward


def test_stages_do_not_import_the_framework() -> None:
    for path in (ROOT / "stages").rglob("*.py"):
        assert not {"pipeline", "mlflow", "hydra"} & imported(path), path


def test_the_framework_and_the_settings_do_not_import_tensorflow() -> None:
    """A fresh process imports every module of the framework except `preload`, which is there to import TensorFlow."""
    script = (
        "import importlib, pkgutil, sys, pipeline, stages.settings\n"
        "import stages.evaluation.predictions, stages.evaluation.test_set\n"  # which planning and comparisons read
        "for package in (pipeline, stages.settings):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not module.name.endswith(('.preload', '.__main__')): importlib.import_module(module.name)\n"
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))\n"
    )
    assert commands.run_alone(script).stdout.strip() == "[]"
    for path in (ROOT / "pipeline").rglob("*.py"):
        assert not {"tensorflow", "keras"} & imported(path), path


PUBLIC = {
    "hydra": ("", "errors"),
    "keras": (),  # in `stages/` only
    "matplotlib": ("", "backends.backend_agg", "backends.backend_svg", "figure", "ticker"),
    "mlflow": ("", "artifacts", "entities", "exceptions", "models", "pyfunc", "tensorflow", "types.schema"),
    "omegaconf": ("", "errors"),
    "optuna": ("", "distributions", "samplers", "storages", "storages.journal", "trial", "visualization",
               "visualization.matplotlib"),
    "pandas": ("",),
    "pyarrow": ("", "csv", "parquet"),
    "ray": ("", "util", "util.placement_group", "util.scheduling_strategies"),
    "rich": ("console", "live", "progress", "table"),
    "scipy": ("", "special"),
    "sklearn": ("", "metrics"),
    "submitit": ("",),
    "tensorflow": ("",),
}  # fmt: skip
"""Modules of other libraries that their documentation presents as public."""

INTERNALS = ROOT / "pipeline" / "internals"
"""Modules that use other names of these libraries. Tests in `tests/pipeline/internals` check what they rely on."""

LIBRARIES = re.compile(rf"({'|'.join(PUBLIC)})(\.\w+)*")


def modules_named(path: Path) -> Iterator[str]:
    """Yield every module that the module at `path` imports, or names in a string for `import_module`."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (name for alias in node.names if is_module(name := f"{node.module}.{alias.name}"))
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Constant) and "." in str(node.value) and is_module(str(node.value)):
            yield str(node.value)


@functools.cache
def is_module(name: str) -> bool:
    """Return whether an installed library of `PUBLIC` has a module of this name, without importing it."""
    if not LIBRARIES.fullmatch(name) or name == "mlflow.db":  # the file of the database
        return False
    top, *rest = name.split(".")
    spec = find_spec(top)
    places = [Path(place, *rest) for place in (spec.submodule_search_locations or [] if spec else [])]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def own_names(path: Path) -> set[str]:
    """Return the names that a module defines or assigns, and the names of its objects' attributes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in nodes_of(path) if isinstance(node, kinds)}
    for node in nodes_of(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            defined.add(node.attr)
    return defined


def test_only_internals_uses_private_names_of_other_libraries() -> None:
    """All other modules of `pipeline/` use only documented names."""
    private = []
    for path in (ROOT / "pipeline").rglob("*.py"):
        if path.parent == INTERNALS:
            continue
        for name in filter(LIBRARIES.fullmatch, modules_named(path)):
            library, _, rest = name.partition(".")
            if rest not in PUBLIC[library]:
                private.append(f"{named(path)}: {name}")
        names = own_names(path) | {"_exit", "_replace"}  # of `os`, and of named tuples
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and re.match(r"_[^_]\w*[^_]$", node.attr) and node.attr not in names:
                private.append(f"{named(path)}: {ast.unparse(node)}")
    assert not private


OF_KERAS = {
    "stages/networks/keras_internals.py": None,
    "stages/data/batches.py": {"_create_device_dataset", "tensorflow.python.data.ops.multi_device_iterator_ops"},
    "stages/networks/complexity.py": {"tensorflow.python.framework.ops", "tensorflow.python.util.deprecation"},
}
"""Modules of `stages/` that use private names of Keras and TensorFlow, and the names; None: any."""


def test_private_names_of_keras_are_in_few_modules() -> None:
    """A new one belongs into `stages/networks/keras_internals.py`, with a test; see docs/how-it-works/upgrades.md."""
    paths = list((ROOT / "stages").rglob("*.py"))
    own = {name for path in paths for name in own_names(path)} | {"_exit", "_replace", "_asdict", "_fields", "_target_"}
    found: dict[str, set[str]] = {}
    for path in paths:
        names = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
        private = {name for name in names - own if re.match(r"_[^_]\w*$", name)}
        private |= {name for name in modules_named(path) if re.match(r"(keras\.src|tensorflow\.python)\b", name)}
        private = {name for name in private if not any(other.startswith(f"{name}.") for other in private)}
        if private:
            found[named(path)] = private
    allowed = {path: names if names is not None else found[path] for path, names in OF_KERAS.items()}
    assert found == allowed


@pytest.mark.parametrize(
    "line",
    [
        "from hydra._internal import utils", "import hydra.core.plugins", "from mlflow.utils import mlflow_tags",
        "from mlflow import utils", "from pandas.core import frame", "import_module('mlflow.store.tracking')",
        "from optuna.storages import _rdb", "study._storage.get_trial(1)", "sys.modules['tensorflow.python']",
    ],
)  # fmt: skip
def test_a_private_name_is_noticed(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "module.py").write_text(f"{line}\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"module\.py"):
        test_only_internals_uses_private_names_of_other_libraries()


def test_modules_have_one_subject_and_docstrings() -> None:
    long = [named(path) for path in CODE if len(path.read_text().splitlines()) > 400]
    assert not long, "do two things live in it?"
    assert not [named(path) for path in CODE if path.stem in ("utils", "helpers", "common", "misc")]
    bare = []
    for path in CODE:
        for node in parsed(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                short = isinstance(node, ast.FunctionDef) and len(node.body) == 1
                if not (short or ast.get_docstring(node)):
                    bare.append(f"{named(path)}: {node.name}")
    assert not bare, "public and without a docstring"


NAME = re.compile(r"(pipeline|stages)(\.\w+)+")
NO_MODULES = ("pipeline.log",)


def test_modules_that_strings_name_exist() -> None:
    """Strings name modules in a `_target_`, in `import_module` and in errors. They must change if a module is moved."""
    lost = []
    for path in CODE:
        constants = [node.value for node in nodes_of(path) if isinstance(node, ast.Constant)]
        texts = [text for text in constants if isinstance(text, str) and NAME.fullmatch(text)]
        for name in set(texts) - set(NO_MODULES):
            parts = name.split(".")
            places = [ROOT.joinpath(*parts[:length]) for length in range(2, len(parts) + 1)]
            if not (any(place.with_suffix(".py").is_file() for place in places) or places[-1].is_dir()):
                lost.append(f"{named(path)}: {name}")
    assert not lost


def test_the_lines_that_mutations_change_exist() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.path).read_text()
        assert text.count(mutation.old) == 1, f"tests/chaos/mutations.py: {mutation.old!r} in {mutation.path}"


def test_the_tests_of_mutations_exist(pytestconfig: pytest.Config) -> None:
    """This checks only the test files that this run of pytest has collected."""
    collected = pytestconfig.stash[COLLECTED]
    files = {name.partition("::")[0] for name in collected}
    named = {name for mutation in MUTATIONS for name in mutation.tests if name.partition("::")[0] in files}
    missing = [name for name in named if not any(each.startswith(name) for each in collected)]
    assert missing == []


QUESTIONS = {"What", "Whatever", "How", "Where", "When", "Which", "Who", "Whoever", "Why"}
"""Words that docstrings must not begin with. They begin with a verb or a noun; `Whether` is for truth values."""


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    """The first line of a module's docstring, which the module map shows, must be a whole sentence."""
    asking, cut = [], []
    for path in CODE:
        alone = [node.value for node in nodes_of(path) if isinstance(node, ast.Expr)]
        texts = [node.value for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        asking += [f"{named(path)}: {text}" for text in texts if text.split()[0] in QUESTIONS]
        first = (ast.get_docstring(parsed(path)) or ".").partition("\n")[0]
        if not first.endswith("."):
            cut.append(f"{named(path)}: {first}")
    assert not asking
    assert not cut, "in the module map"


@pytest.mark.slow
def test_a_wheel_contains_the_configuration_and_no_tests(tmp_path: Path) -> None:
    """It is built and unpacked outside of the source tree, and prints its configuration and its plan there."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    folders = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert folders == {"pipeline", "stages"}
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "pipeline", "strategy=mirrored", "dry_run=true"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, "model, dataset, strategy -> trained" in done.stdout) == (0, True)
    assert (tmp_path / "outputs").is_dir()  # in the working directory, as there is no source tree
    where = [sys.executable, "-c", "import pipeline.paths as p; print(p.CONF)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(site / "pipeline" / "conf")


def test_constraints_pin_all_packages_and_contain_no_addresses() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert not [line for line in lines if "://" in line or "@" in line or line.startswith("-")]


def test_outputs_are_ignored_by_git() -> None:
    assert (ROOT / "outputs" / ".gitignore").read_text() == "*\n!.gitignore\n"


def test_files_are_never_unpickled() -> None:
    """Unpickling can run any code. `compose` unpickles only a document that it has pickled in memory."""
    importing = {path.name for path in CODE if re.search(r"^\s*(import|from) pickle\b", path.read_text(), re.MULTILINE)}
    assert importing == {"compose.py"}
