"""Training on texts: the same on any replicas, beside columns of a table, and better than the most frequent class."""

import importlib
import inspect
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.load.folders import text_folder
from stages.normalize import normalize
from stages.results import Dataset, Model, Strategy
from stages.settings.data import NormalizeSettings, TextFolderSettings
from stages.settings.model import MlpSettings, TextCnnSettings, TransformerSettings
from tests.stages.experiments import (
    adam,
    after_steps,
    assert_replicas_equal_one_device,
    built_of,
    flat,
    model_parallel,
    one_device,
    settings,
    table_of,
)

ROWS = 300
STEPS = 20


@pytest.fixture(scope="module")
def docstrings(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Docstrings of some modules, whose packages are the classes; the package's name is left out."""
    folder = tmp_path_factory.mktemp("docstrings")
    modules = {
        "numpy": ("numpy", "numpy.linalg", "numpy.random", "numpy.fft", "numpy.ma"),
        "scipy": ("scipy.stats", "scipy.signal", "scipy.optimize"),
        "keras": ("keras.layers", "keras.ops", "keras.losses", "keras.optimizers"),
        "sklearn": ("sklearn.metrics", "sklearn.cluster", "sklearn.linear_model", "sklearn.ensemble"),
    }
    for package, names in modules.items():
        (folder / package).mkdir(parents=True)
        found = [vars(importlib.import_module(name)) for name in names]
        public = [(name, value) for module in found for name, value in module.items() if not name.startswith("_")]
        texts = {inspect.getdoc(value) or "" for _, value in public if callable(value)}
        for number, text in enumerate(sorted(texts, key=len)[-200:]):
            (folder / package / f"{number}.txt").write_text(text.lower().replace(package, ""))
    loaded = text_folder(TextFolderSettings(dir=str(folder)))
    return normalize(loaded, NormalizeSettings(max_tokens=5000, length=48))


def build(data: Dataset, where: Strategy, network: Any = None, policy: str = "float32") -> Model:
    network = network or TextCnnSettings(filters=16, dropout=0.2)
    return built_of(network, data, where, policy)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A text beside a number and a category of few values; the text alone has the target."""
    random = np.random.default_rng(5)
    words = random.choice([f"word{number}" for number in range(90)], (ROWS, 12))
    texts = [" ".join(row[: random.integers(0, 12)]) for row in words]
    target = ["yes" if "word1" in text else "no" for text in texts]
    frame = pd.DataFrame({"size": random.normal(size=ROWS), "color": random.choice(["red", "blue"], ROWS)})
    frame = frame.assign(review=texts, liked=target)
    loaded = table_of(tmp_path_factory.mktemp("texts"), frame, target="liked", features={"review": "text"})
    return normalize(loaded, NormalizeSettings(length=8))


@pytest.mark.slow
def test_layers_of_several_inputs_are_on_several_devices(data: Dataset) -> None:
    make = partial(build, network=TRANSFORMER)
    (one, _), (placed, _) = (after_steps(where(), data, settings(), 6, make) for where in (one_device, model_parallel))
    assert {weight.value.device[-1] for weight in placed.network.weights} == {"0", "1"}
    np.testing.assert_allclose(flat(placed.network), flat(one.network), atol=1e-6)


CNN, TRANSFORMER = TextCnnSettings(filters=16, dropout=0.2), TransformerSettings(width=16, dropout=0.2)


@pytest.mark.parametrize("network", [CNN, pytest.param(TRANSFORMER, marks=pytest.mark.slow)])
def test_replicas_equal_one_device(data: Dataset, network: Any) -> None:
    made = partial(build, network=network)
    assert_replicas_equal_one_device(data, settings(batch_size=64), STEPS, made, 3)


@pytest.mark.parametrize(("network", "policy"), [
    (TextCnnSettings(filters=32, dropout=0.2), "mixed_bfloat16"), (TransformerSettings(width=32), "mixed_bfloat16"),
    (MlpSettings(hidden=[32]), "float32"),
])  # fmt: skip
def test_networks_tell_packages_by_their_docstrings(docstrings: Dataset, network: Any, policy: str) -> None:
    given = settings(batch_size=64, optimizer=adam(learning_rate=0.003))
    trained, _ = after_steps(one_device(), docstrings, given, 100, partial(build, network=network, policy=policy))
    answers = np.asarray(trained.network(docstrings.test.inputs["text"][:])).argmax(axis=1)
    majority = np.bincount(docstrings.test.target_values).max() / len(docstrings.test)
    assert len(docstrings.test) > 80
    assert (answers == docstrings.test.targets).mean() > majority + 0.3
