"""TensorFlow is imported without modules that few runs need, and imported modules are not garbage-collected."""

import gc
import json
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.system.environment import imports_kept
from tests import commands

BEGIN = """
import json, sys
from pipeline.system.environment import imports_kept
from pipeline.targets import load
load("train.callbacks", "keras.callbacks.Callback")
with imports_kept():
    import keras
    import stages.augment, stages.evaluate, stages.export, stages.inspect, stages.load.digits
    import stages.networks.cnn, stages.normalize, stages.strategy, stages.train
"""

LOADED = """
late = "matplotlib.figure", "pandas", "scipy.stats", "sklearn"
print(json.dumps([name for name in late if name in sys.modules]))
"""

USE = """
import numpy as np, pandas as pd
from sklearn.base import is_classifier
from keras.wrappers import SKLearnClassifier
assert is_classifier(SKLearnClassifier(keras.Sequential())) and keras.wrappers.SKLearnClassifier is SKLearnClassifier
network = keras.Sequential([keras.layers.Dense(1)])
network.compile(loss="mse")
network.fit(pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([1.0, 2.0]), validation_split=0.5, verbose=0)
path = sys.argv[1]
keras.visualization.plot_image_gallery(np.zeros((4, 8, 8, 3)), value_range=(0, 1), path=path)
print(open(path, "rb").read(4))
"""


@pytest.mark.slow
def test_keras_does_not_import_scikit_learn_matplotlib_or_pandas_and_works_with_each(tmp_path: Path) -> None:
    code = BEGIN + LOADED + USE
    done = commands.run_alone(code, str(tmp_path / "gallery.png"))
    assert not done.returncode, done.stderr
    loaded, gallery = done.stdout.splitlines()
    assert json.loads(loaded) == []
    assert gallery == "b'\\x89PNG'"


class Part:
    """An object that refers to itself, so only the garbage collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_paused_within_the_block_and_restored_afterwards(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()
    try:
        with suppress(ImportError), imports_kept():
            inside = weakref.ref(Part())
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == enabled
        gc.collect()
        assert inside() is not None  # kept forever, like modules
        after = weakref.ref(Part())
        gc.collect()
        assert after() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_the_modules_of_a_forked_job_are_excluded_from_garbage_collection() -> None:
    code = (
        "import pipeline.execute.preload, gc, sys; print(gc.get_freeze_count(), gc.isenabled(), len(gc.get_objects()), "
        "{'matplotlib.figure', 'keras.src.wrappers.sklearn_wrapper'} <= set(sys.modules))"
    )
    done = commands.run_alone(code)
    frozen, enabled, seen, has_all = done.stdout.split()
    assert (enabled, has_all) == ("True", "True")
    assert int(frozen) > 20 * int(seen) > 0
