"""Peak memory, GPUs (with a fake `nvidia-smi`), and the rules that depend on them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.checks.conditions import expected_replicas
from pipeline.checks.registry import check_rules
from pipeline.system import machine
from pipeline.system.machine import Gpu
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import experiment


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    first = "case $* in *--id=1*) ;; *) echo 'Tesla T4, 7.5' ;; esac"
    program.write_text(f"#!/bin/sh\n{first}\necho 'Some GPU, with a comma, 8.0'\n")
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
def test_bfloat16_is_refused_on_a_gpu_without_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"compute capability below 8\.0.*Try: precision=mixed_float16"):
        check_rules(experiment("precision=mixed_bfloat16", outputs=tmp_path))
    check_rules(experiment("precision=mixed_float16", outputs=tmp_path))
    check_rules(experiment("precision=mixed_bfloat16", "strategy.device=/cpu:0", outputs=tmp_path))
    check_rules(experiment("precision=mixed", outputs=tmp_path))


def test_facts_do_not_identify_the_machine_or_its_owner() -> None:
    import getpass
    import socket

    text = str(machine.facts())
    assert "cores" in text
    assert socket.gethostname() not in text.split()
    assert f"/{getpass.getuser()}" not in text


def test_peak_memory_is_measured_per_process() -> None:
    """It stays when memory is freed; a forked process starts with the memory in use, not with its parent's peak."""
    script = """
import os, mmap
from pipeline.system.machine import peak_memory_mib

def touch(mib):
    with mmap.mmap(-1, mib * 2**20) as block:
        for page in range(0, len(block), 4096):
            block[page] = 1

start = peak_memory_mib()
touch(300)
assert 290 < peak_memory_mib() - start < 330, (start, peak_memory_mib())
if pid := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert peak_memory_mib() < start + 50, (start, peak_memory_mib())
touch(200)
assert 170 < peak_memory_mib() - start < 250, (start, peak_memory_mib())
"""
    done = commands.run_alone(script)
    assert done.returncode == 0, done.stderr
