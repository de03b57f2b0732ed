"""Training on texts: the same on any replicas, beside columns of a table, and better than the most frequent class."""

import importlib
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.load.table import table
from stages.load.text_folder import text_folder
from stages.normalize import normalize
from stages.results import Dataset, Model, Strategy
from stages.settings.data import TextFolderSettings
from stages.settings.images import NormalizeSettings
from stages.settings.model import MlpSettings, TextCnnSettings, TransformerSettings
from stages.settings.table import TableSettings
from tests.stages.experiments import adam, after_steps, assert_replicas_equal_one_device, built_of, one_device, settings

ROWS = 300
STEPS = 20


def docstrings(folder: Path) -> None:
    """Writes the docstrings of some modules, a folder for each package, and the package's name left out."""
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
    path = tmp_path_factory.mktemp("texts") / "reviews.csv"
    frame.assign(review=texts, liked=target).to_csv(path, index=False)
    loaded = table(TableSettings(files=str(path), target="liked", features={"review": "text"}))
    return normalize(loaded, NormalizeSettings(length=8))


def test_a_text_of_a_table_is_numbers_of_words(data: Dataset) -> None:
    assert {name: feature.kind for name, feature in data.features.items()} == {
        "size": "number", "color": "category", "review": "text",
    }  # fmt: skip
    words = data.train.inputs["review"]
    assert isinstance(words, np.ndarray)
    assert (words.dtype, words.shape[1]) == (np.int32, 8)
    assert (words == 0).all(axis=1).any()  # an empty text


CNN, TRANSFORMER = TextCnnSettings(filters=16, dropout=0.2), TransformerSettings(width=16, dropout=0.2)


@pytest.mark.parametrize(("replicas", "network"), [(2, CNN), (3, CNN), (3, TRANSFORMER)])
def test_replicas_equal_one_device(data: Dataset, replicas: int, network: Any) -> None:
    made = partial(build, network=network)
    assert_replicas_equal_one_device(data, settings(batch_size=64), STEPS, made, replicas)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "network", [TextCnnSettings(filters=32, dropout=0.2), TransformerSettings(width=32), MlpSettings(hidden=[32])]
)
def test_networks_tell_packages_by_their_docstrings(tmp_path: Path, network: Any, policy: str) -> None:
    docstrings(tmp_path)
    loaded = normalize(
        text_folder(TextFolderSettings(dir=str(tmp_path))), NormalizeSettings(max_tokens=5000, length=48)
    )
    given = settings(batch_size=64, optimizer=adam(learning_rate=0.003))
    trained, _ = after_steps(one_device(), loaded, given, 100, partial(build, network=network, policy=policy))
    answers = np.asarray(trained.network(loaded.test.inputs["text"][:])).argmax(axis=1)
    majority = np.bincount(loaded.test.targets).max() / len(loaded.test)
    assert len(loaded.test) > 80
    assert (answers == loaded.test.targets).mean() > majority + 0.3
