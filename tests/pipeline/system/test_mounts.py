"""Locks that hold on one host alone are known by how the folder is mounted."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.run.lifecycle import begin
from pipeline.run_folder import lock
from pipeline.run_folder.lock import local_locks, warn_of_local_locks
from tests.pipeline.experiments import experiment

ROOT = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
DATA = r"90 27 0:55 / /mnt/our\040data rw shared:9 master:2 - {kind} {source} rw,vers=3,{options},addr=10.0.0.1"
FOLDER = Path("/mnt/our data/outputs")


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
def test_locks_of_one_host_are_known_by_the_mount(kind: str, source: str, options: str, reason: str | None) -> None:
    mountinfo = "\n".join([ROOT, "broken", DATA.format(kind=kind, source=source, options=options)])
    assert local_locks(FOLDER, mountinfo) == reason
    assert local_locks(Path("/mnt/our database"), mountinfo) is None, "beside it"


def test_the_innermost_and_last_mount_counts() -> None:
    outer = DATA.format(kind="nfs", source="host:/data", options="nolock")
    inner = r"91 90 0:56 / /mnt/our\040data/outputs rw - ext4 /dev/vdb rw"
    assert local_locks(FOLDER, f"{ROOT}\n{outer}\n{inner}") is None
    assert local_locks(FOLDER, f"{ROOT}\n{inner}\n{outer}") is None
    assert local_locks(FOLDER.parent, f"{ROOT}\n{outer}\n{inner}") is not None
    assert local_locks(FOLDER.parent, f"{ROOT}\n{outer}\n{DATA.format(kind='ext4', source='x', options='y')}") is None


def test_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    warn_of_local_locks(tmp_path, lines.append)
    assert lines == []
    (tmp_path / "mountinfo").write_text(f"90 27 0:55 / {tmp_path} rw - fuse.sshfs host:/ rw")
    monkeypatch.setattr(lock, "MOUNTS", tmp_path / "mountinfo")
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    warn_of_local_locks(tmp_path / "link", lines.append)
    [line] = lines
    assert line.startswith(f"{tmp_path} is mounted by sshfs: its locks hold on one host alone. Start runs in ")


def test_a_run_warns_where_locks_are_of_one_host(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (outputs / "mountinfo").write_text(f"90 27 0:55 / {outputs} rw - fuse.sshfs host:/ rw")
    monkeypatch.setattr(lock, "MOUNTS", outputs / "mountinfo")
    with ExitStack() as resources:
        begin(Job(experiment("tracking=off", outputs=outputs)), Console(), resources)
    printed = capsys.readouterr()
    assert f"{outputs} is mounted by sshfs: its locks hold on one host alone" in printed.out + printed.err
