"""What imports bring is never looked through by the garbage collector."""

import gc
import subprocess
import sys
import weakref
from contextlib import suppress

import pytest

from pipeline.system.environment import imports_kept


class Part:
    """An object that refers to itself: the collector alone can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_within_and_the_collector_is_left_as_it_was(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()
    try:
        with suppress(ImportError), imports_kept():
            inside = weakref.ref(Part())
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == enabled
        gc.collect()
        assert inside() is not None  # kept for ever, as modules are
        after = weakref.ref(Part())
        gc.collect()
        assert after() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_forked_job_begins_with_its_modules_out_of_the_collectors_sight() -> None:
    code = (
        "import pipeline.run.preload, gc, sys; print(gc.get_freeze_count(), gc.isenabled(), len(gc.get_objects()), "
        "{'matplotlib.figure', 'keras.src.wrappers.sklearn_wrapper'} <= set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, enabled, seen, has_all = done.stdout.split()
    assert (enabled, has_all) == ("True", "True")
    assert int(frozen) > 20 * int(seen) > 0
