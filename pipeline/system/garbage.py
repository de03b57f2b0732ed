"""Garbage collection around imports, which bring millions of objects that live as long as the process."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_kept() -> Iterator[None]:
    """Collects no garbage within the block, and never looks again at the objects that are there at its end.

    Python's collector would look through all modules several times while they are imported, and in every process that
    is forked afterwards, which copies their memory by that: half a second each time with TensorFlow.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
