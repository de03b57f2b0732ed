"""A model of the time of a synchronous step on n replicas, without TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Between neighbours of a ring. bandwidth: bytes a second in each direction; latency: seconds of a message."""

    bandwidth: float
    latency: float

    @classmethod
    def gigabits(cls, gigabits: float, microseconds: float) -> "Link":
        return cls(gigabits * 1e9 / 8, microseconds * 1e-6)


def sent_by_each(size: float, replicas: int) -> float:
    """Return the bytes that each replica sends in a ring all-reduce of `size` bytes: 2 (n-1) / n of them.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    return 2 * (replicas - 1) / replicas * size


def reduction_seconds(size: float, replicas: int, link: Link) -> float:
    """Return the seconds of that all-reduce: 2 (n-1) messages one after another, and the bytes of one replica."""
    return 2 * (replicas - 1) * link.latency + sent_by_each(size, replicas) / link.bandwidth


def step_seconds(
    compute: float, size: float, replicas: int, link: Link, packs: int = 1, cores: int | None = None
) -> float:
    """Return the seconds of a step: replicas compute, and reduce `size` bytes of gradients in `packs`.

    The backward pass takes two thirds of the computing, and gradients appear evenly in it. A pack is sent as soon as it
    is there and the link is free; as packs are reductions of their own, they wait for latencies at once.

    Args:
        compute: seconds of a replica's part of the step on a core, or a device, of its own.
        cores: that all replicas share; None: each has its own.
    """
    compute *= 1.0 if cores is None else max(1.0, replicas / cores)
    sent = sent_by_each(size / packs, replicas) / link.bandwidth
    first = compute / 3 + 2 / 3 * compute / packs
    return max(compute + sent, first + packs * sent) + reduction_seconds(0, replicas, link)


def efficiency(compute: float, size: float, replicas: int, link: Link, packs: int = 1) -> float:
    """Return the throughput per replica as a fraction of that of one, where each has the same batch."""
    return compute / step_seconds(compute, size, replicas, link, packs)
