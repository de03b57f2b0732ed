"""Locks that hold on one host alone are known by how the folder is mounted."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.planning.resume import claimed
from pipeline.run.lifecycle import begin
from pipeline.run_folder.lock import local_locks, warn_of_local_locks
from tests.pipeline.experiments import experiment

ROOT = "/dev/vda / ext4 rw,relatime 0 0"
DATA = r"{source} /mnt/our\040data {kind} rw,vers=3,{options},addr=10.0.0.1 0 0"
FOLDER = Path("/mnt/our data/outputs")


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has psutil read these lines as the mounts of this machine."""

    def mounted(*lines: str) -> None:
        (tmp_path / "proc" / "self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / "self" / "mounts").write_text("\n".join([*lines, ""]))
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))

    return mounted


@pytest.mark.parametrize(
    ("kind", "source", "options", "reason"),
    [
        ("nfs", "host:/data", "nolock,local_lock=all", "/mnt/our data is nfs mounted with local_lock=all, nolock"),
        ("nfs", "host:/data", "local_lock=flock", "/mnt/our data is nfs mounted with local_lock=flock"),
        ("nfs", "host:/data", "local_lock=none", None),
        ("nfs", "host:/data", "local_lock=posix", None),
        ("nfs4", "host:/data", "nolock,local_lock=none", None),
        ("nfs4", "host:/data", "local_lock=flock", "/mnt/our data is nfs4 mounted with local_lock=flock"),
        ("lustre", "10.0.0.1@tcp:/lustre", "localflock", "/mnt/our data is lustre mounted with localflock"),
        ("lustre", "10.0.0.1@tcp:/lustre", "flock", None),
        ("cifs", "//host/data", "nobrl", "/mnt/our data is cifs mounted with nobrl"),
        ("fuse.s3fs", "s3fs", "user_id=0", "/mnt/our data is mounted by s3fs"),
        ("fuse.gcsfuse", "bucket", "user_id=0", "/mnt/our data is mounted by gcsfuse"),
        ("fuse", "mountpoint-s3", "user_id=0", "/mnt/our data is mounted by mountpoint-s3"),
        ("fuse.glusterfs", "host:/volume", "user_id=0", None),
        ("ceph", "host:/", "nolock", None),
    ],
)
def test_locks_of_one_host_are_known_by_the_mount(
    kind: str, source: str, options: str, reason: str | None, mounted: Callable[..., None]
) -> None:
    mounted(ROOT, "broken", DATA.format(kind=kind, source=source, options=options))
    assert local_locks(FOLDER) == reason
    assert local_locks(Path("/mnt/our database")) is None, "beside it"


def test_the_innermost_and_last_mount_counts(mounted: Callable[..., None]) -> None:
    outer = DATA.format(kind="nfs", source="host:/data", options="nolock")
    inner = r"/dev/vdb /mnt/our\040data/outputs ext4 rw 0 0"
    mounted(ROOT, inner, outer)
    assert local_locks(FOLDER) is None
    mounted(ROOT, outer, inner)
    assert local_locks(FOLDER) is None
    assert local_locks(FOLDER.parent) is not None
    mounted(ROOT, outer, DATA.format(kind="ext4", source="x", options="y"))
    assert local_locks(FOLDER.parent) is None


def test_this_machine_is_read(tmp_path: Path, mounted: Callable[..., None]) -> None:
    lines: list[str] = []
    warn_of_local_locks(tmp_path, lines.append)
    assert lines == []
    mounted(f"host:/ {tmp_path} fuse.sshfs rw 0 0")
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    warn_of_local_locks(tmp_path / "link", lines.append)
    [line] = lines
    assert line.startswith(f"{tmp_path} is mounted by sshfs: its locks hold on one host alone. Start runs in ")


def test_a_run_warns_where_locks_are_of_one_host(
    outputs: Path, mounted: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    mounted(f"host:/ {outputs} fuse.sshfs rw 0 0")
    with claimed(Job(experiment("tracking=off", outputs=outputs))) as job:
        begin(job, Console())
    printed = capsys.readouterr()
    assert f"{outputs} is mounted by sshfs: its locks hold on one host alone" in printed.out + printed.err
