"""The requirements of a model are few and enough: an environment of nothing else serves what its export answers."""

import json
import os
import subprocess
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.api import Run
from tests import commands
from tests.pipeline.experiments import QUICK
from tests.servers import free_port, stopped, wait_for

pytestmark = pytest.mark.engines

USED = "import json, sys, mlflow; mlflow.pyfunc.load_model({!r}); print(json.dumps(sorted(sys.modules)))"


def installed(requirements: list[Requirement]) -> dict[str, metadata.Distribution]:
    """Return the distributions that pip would install for `requirements`, each in the version that is at hand."""
    found: dict[str, metadata.Distribution] = {}
    while requirements:
        requirement = requirements.pop()
        name = canonicalize_name(requirement.name)
        distribution = metadata.distribution(name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
        extras = sorted(requirement.extras) or [""]
        parts = [Requirement(text) for text in distribution.requires or []]
        parts = [part for part in parts if not part.marker or any(part.marker.evaluate({"extra": e}) for e in extras)]
        if name not in found or requirement.extras:
            found[name] = distribution
            requirements += parts
    return found


def linked_environment(folder: Path, distributions: list[metadata.Distribution]) -> Path:
    """Make a virtual environment of these distributions alone, of hard links to their files; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    [site] = folder.glob("lib/python3*/site-packages")
    for distribution in distributions:
        own = Path(str(distribution.locate_file("")))
        for file in distribution.files or []:
            source = own / file
            if ".." not in file.parts and source.is_file():
                place = site / file
                place.parent.mkdir(parents=True, exist_ok=True)
                place.unlink(missing_ok=True)
                place.hardlink_to(source) if source.stat().st_dev == site.stat().st_dev else place.symlink_to(source)
        for entry in distribution.entry_points.select(group="console_scripts"):
            script = folder / "bin" / entry.name
            start = f"import sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n"
            script.write_text(f"#!{folder / 'bin' / 'python'}\n{start}")
            script.chmod(0o755)
    return folder / "bin" / "python"


def test_a_clean_environment_with_the_recorded_requirements_serves_the_model(outputs: Path, tmp_path: Path) -> None:
    """The packages are linked from here, as an installation takes minutes; which they are is by their own metadata."""
    done = commands.run(*QUICK, "train.epochs=1", "pipeline.inspect=null", f"outputs={outputs}")
    assert done.returncode == 0, done.stdout + done.stderr
    [pins] = outputs.glob("artifacts/**/artifacts/requirements.txt")
    requirements = [Requirement(line) for line in pins.read_text().splitlines()]
    distributions = installed([*requirements])
    python = linked_environment(tmp_path / "clean", [*distributions.values()])
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    own["PATH"] = f"{python.parent}:{own['PATH']}"  # as in an environment that is active

    def alone(script: str) -> str:
        command = [str(python), "-c", script]
        return subprocess.run(
            command, env=own, cwd=tmp_path, capture_output=True, check=True, timeout=180
        ).stdout.decode()

    absent = "from importlib.util import find_spec; print(*map(find_spec, {!r}))"
    assert alone(absent.format(["pipeline", "stages", "hydra", "optuna"])).split() == ["None"] * 4
    used = json.loads(alone(USED.format(str(pins.parent))))
    assert {requirement.name for requirement in requirements} <= set(used), "few: each of them is used"
    assert len(requirements) <= 4

    serve = [python, "-m", "mlflow", "models", "serve", "--env-manager", "local", "--model-uri", pins.parent]
    port = free_port()
    images = np.random.default_rng(0).uniform(0, 16, (3, 8, 8, 1)).astype(np.float32)
    with (tmp_path / "log").open("w") as log:
        place = ["--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(
            [*map(str, serve), *place], cwd=tmp_path, env=own, stdout=log, stderr=log, start_new_session=True
        )
        with stopped(server):
            address = f"http://127.0.0.1:{port}"
            try:
                wait_for(f"{address}/ping", server)
            except AssertionError as error:
                raise AssertionError((tmp_path / "log").read_text()) from error
            body = json.dumps({"inputs": images.tolist()}).encode()
            asked = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=120) as response:
                answer = json.load(response)["predictions"]
    [summary] = outputs.glob("runs/*/*/summary.json")
    np.testing.assert_allclose(answer, Run(summary.parent).load_model()(images).numpy(), atol=1e-6)
