"""The single place where a seed, the run's or that of its splits, becomes all others."""

import hashlib


def derive(seed: int, *path: str | int) -> int:
    """Return a seed in [0, 2**31) for the purpose `path`, e.g. `derive(7, "shuffle")`.

    Equal arguments give equal seeds on every machine and in every process; Python's own `hash` does not.
    """
    key = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
