"""The wall time of a training, part by part."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PARTS = ("build", "features", "steps", "input_wait", "validation", "callbacks", "checkpoints")
"""Parts of a training's time; what is none of them is `other`."""


class Timing:
    """Adds up the seconds of each part since it was made; of parts within parts, each its own."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []
        """For each part that is open, the innermost last: seconds of the parts within it."""

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Counts the block as `part`, but for what is counted within it."""
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
        """Counts seconds that nothing else counts."""
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def move(self, source: str, target: str, seconds: float) -> None:
        """Counts as `target` what has been counted as `source`, as far as there is so much of it."""
        moved = min(seconds, self._seconds.get(source, 0.0))
        self.add(source, -moved)
        self.add(target, moved)

    def metrics(self) -> dict[str, float]:
        """Returns `train/<part>_seconds` of every part that there was, and `other`: they add up to the time so far."""
        known = {part: self._seconds[part] for part in PARTS if part in self._seconds}
        known["other"] = max(time.perf_counter() - self._began - sum(known.values()), 0.0)
        return {f"train/{part}_seconds": seconds for part, seconds in known.items()}
