"""GPUs by `nvidia-smi`, and the rules that need them. The program is a stand-in: there may be no GPU here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.checks.batch import expected_replicas
from pipeline.checks.registry import check_rules
from pipeline.system import machine
from pipeline.system.machine import Gpu
from stages.errors import UserError
from tests.pipeline.experiments import experiment


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Tesla T4, 7.5'\necho 'Some GPU, with a comma, 8.0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.gpus.cache_clear()
    yield
    machine.gpus.cache_clear()


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_found_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.gpus() == (Gpu("Tesla T4", (7, 5)), Gpu("Some GPU, with a comma", (8, 0)))
    assert expected_replicas(experiment("strategy=mirrored")) == 2
    machine.gpus.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.gpus() == (Gpu("Some GPU, with a comma", (8, 0)),)


@pytest.mark.usefixtures("two_gpus")
def test_bfloat16_is_refused_on_a_gpu_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"precision=mixed_bfloat16 on Tesla T4 .*7\.5.*Try: precision=mixed_float16"):
        check_rules(experiment("precision=mixed_bfloat16", outputs=tmp_path))
    check_rules(experiment("precision=mixed_bfloat16", "strategy.device=/cpu:0", outputs=tmp_path))
    check_rules(experiment("precision=mixed", outputs=tmp_path))


def test_facts_name_nobody() -> None:
    import getpass
    import socket

    text = str(machine.facts())
    assert "cores" in text
    assert socket.gethostname() not in text.split()
    assert f"/{getpass.getuser()}" not in text
