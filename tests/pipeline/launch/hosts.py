"""Hosts as network namespaces. Each has its own network interface and address, and a link that can be cut."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Host:
    """A network namespace, whose /etc/hosts contains the names of all hosts."""

    namespace: str
    address: str
    """The address of its network interface."""

    def start(
        self, *words: str, log: Path, environment: Mapping[str, str], module: str = "pipeline", core: int | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start `python -m module` on this host, on all cores or only on `core`. Its output goes to the file `log`."""
        pinned = ["taskset", "--cpu-list", str(core)] if core is not None else []
        command = ["ip", "netns", "exec", self.namespace, *pinned, sys.executable, "-m", module, *words]
        settings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        with log.open("ab") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            return subprocess.Popen(command, cwd=log.parent, env=settings, **streams)  # type: ignore[call-overload]

    def link(self, state: str) -> None:
        """Cut the link (`down`) or restore it (`up`)."""
        _ip("-n", self.namespace, "link", "set", "veth0", state)


@contextmanager
def linked_hosts(*names: str, rate: str | None = None) -> Iterator[list[Host]]:
    """Yield hosts that are linked by a switch; skip the test if this user may not create network namespaces.

    Args:
        names: The host names, which all hosts can resolve.
        rate: The maximum sending rate of each host in the notation of `tc`, such as `10gbit`.
    """
    switch = f"switch{os.getpid()}"
    with _namespaces(names) as hosts, ExitStack() as held:
        _ip("link", "add", switch, "type", "bridge")
        held.callback(_ip, "link", "delete", switch)
        _ip("link", "set", switch, "up")
        for index, host in enumerate(hosts):
            port = f"port{index}-{os.getpid()}"
            _ip("link", "add", port, "type", "veth", "peer", "name", "veth0", "netns", host.namespace)
            held.callback(_ip, "link", "delete", port)  # the kernel would delete it too late for the next link
            _ip("link", "set", port, "master", switch, "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "veth0")
            host.link("up")
            if rate is not None:
                shape = ("root", "tbf", "rate", rate, "burst", "4mb", "latency", "100ms")
                subprocess.run(["tc", "-n", host.namespace, "qdisc", "add", "dev", "veth0", *shape], check=True)
        yield hosts


@contextmanager
def _namespaces(names: Sequence[str]) -> Iterator[list[Host]]:
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need Debian's iproute2 and root")
    hosts = [Host(f"pipeline-{os.getpid()}-{index}", f"10.77.0.{index + 1}") for index in range(len(names))]
    lines = [f"{host.address} {name}\n" for host, name in zip(hosts, names, strict=True)]
    known = "".join(["127.0.0.1 localhost\n", *lines])
    with ExitStack() as held:
        for host in hosts:
            try:
                _ip("netns", "add", host.namespace)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not allowed here ({error.stderr.strip()})")
            held.callback(_ip, "netns", "delete", host.namespace)
            place = Path("/etc/netns") / host.namespace
            place.mkdir(parents=True)
            held.callback(shutil.rmtree, place)
            (place / "hosts").write_text(known)  # `ip netns exec` puts it in the place of /etc/hosts
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield hosts


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)
