"""Wall time of a training, by its parts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PARTS = ("build", "features", "steps", "input_wait", "validation", "callbacks", "checkpoints")
"""Parts of a training's time; the remainder is `other`."""


class Timing:
    """Sums the seconds of each part, without those of parts within it."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []
        """For each open part, the innermost last, the seconds of the parts within it."""

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Counts the block as `part`, without the parts within it."""
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - began
            self.add(part, elapsed - self._inner.pop())
            if self._inner:
                self._inner[-1] += elapsed

    def add(self, part: str, seconds: float) -> None:
        """Adds seconds that no block has counted."""
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def move(self, source: str, target: str, seconds: float) -> None:
        """Moves seconds from `source` to `target`, at most all of those counted as `source`."""
        moved = min(seconds, self._seconds.get(source, 0.0))
        self.add(source, -moved)
        self.add(target, moved)

    def metrics(self) -> dict[str, float]:
        """Returns `train/<part>_seconds` of every counted part and `other`, which add up to the time so far."""
        counted = {part: self._seconds[part] for part in PARTS if part in self._seconds}
        counted["other"] = max(time.perf_counter() - self._began - sum(counted.values()), 0.0)
        return {f"train/{part}_seconds": seconds for part, seconds in counted.items()}
