"""Every format answers as the model does, in a process without this project, in every precision and placement."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from stages.errors import UserError
from stages.export import export
from stages.exporters.comparison import _compared
from stages.exporters.litert import LiteRT
from stages.exporters.reload import load
from stages.exporters.saved_model import SavedModel
from stages.normalize import normalize
from stages.results import Dataset, Exported, Model, Strategy, Trained
from stages.settings import results as kinds
from stages.settings.data import NormalizeSettings
from stages.settings.model import CnnSettings, MlpSettings, ResnetSettings, TabularSettings
from stages.tasks.classification import classification
from tests.conftest import ROOT
from tests.stages.experiments import (
    after_steps,
    built_of,
    mirrored,
    model_parallel,
    one_device,
    real_digits,
    settings,
    table_of,
)

pytestmark = pytest.mark.slow

FORMATS: dict[str, Any] = {
    "saved_model": kinds.SavedModelSettings(), "keras": kinds.KerasSettings(), "litert_float32": kinds.LiteRTSettings(),
    "litert_float16": kinds.LiteRTSettings(weights="float16", largest_difference=0.05),
    "litert_int8": kinds.LiteRTSettings(weights="int8", largest_difference=0.5, least_agreement=0.99),
}  # fmt: skip
if all(importlib.util.find_spec(package) for package in kinds.OnnxSettings.requires):
    FORMATS["onnx"] = kinds.OnnxSettings()


@cache
def digits() -> Dataset:
    return real_digits()


@cache
def weights() -> list[np.ndarray]:
    """Weights of a small network that has learned digits, for all precisions and placements."""
    built, _ = after_steps(one_device(), digits(), settings(), steps=120, build=lambda data, where: built_on(where))
    return [np.asarray(weight) for weight in built.network.get_weights()]


def built_on(where: Strategy, policy: str = "float32") -> Model:
    network = CnnSettings(filters=[8, 16], dropout=0.1)
    return built_of(network, digits(), where, policy)


def trained(where: Strategy, policy: str = "float32") -> Trained:
    built = built_on(where, policy)
    built.network.set_weights(weights())
    return Trained(built, (), 1, 0)


def exported(folder: Path, result: Trained, reload: str = "here", **formats: Any) -> Exported:
    return export(result, digits(), kinds.ExportSettings(formats=formats or FORMATS, reload=reload), folder)


@pytest.fixture(scope="module")
def all_formats(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """Every format of a network in float32, reloaded in fresh processes."""
    folder = tmp_path_factory.mktemp("run")
    return folder, exported(folder, trained(one_device()), "process")


def test_every_format_answers_as_the_model_in_a_process_without_the_project(all_formats: tuple[Path, Exported]) -> None:
    folder, result = all_formats
    metrics = result.record.metrics
    figures = {name: value for name, value in metrics.items() if name.endswith("/max_abs_diff")}
    assert list(figures) == [*(f"export/{name}/max_abs_diff" for name in FORMATS), "export/max_abs_diff"]
    assert list(FORMATS) == [result.format, *result.others]
    for name, path in {result.format: result.path, **result.others}.items():
        assert metrics[f"export/{name}/max_abs_diff"] <= {"litert_float16": 0.01, "litert_int8": 0.2}.get(name, 1e-5), (
            name
        )
        assert metrics[f"export/{name}/agreement"] >= (0.99 if name == "litert_int8" else 0.995), name
        assert metrics[f"export/{name}/milliseconds"] > 0
        assert metrics[f"export/{name}/size_mib"] > 1000 / 2**20
        assert path.exists()
        assert f"| {name} | " in (folder / "export" / "formats.md").read_text()
    assert metrics["export/max_abs_diff"] == metrics["export/saved_model/max_abs_diff"]
    sizes = [metrics[f"export/litert_{weights}/size_mib"] for weights in ("float32", "float16", "int8")]
    assert sizes == sorted(sizes, reverse=True)


def test_the_blocks_of_the_page_load_every_format(
    all_formats: tuple[Path, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("ai_edge_litert", "onnxruntime", "tf2onnx"):
        pytest.importorskip(package)
    monkeypatch.chdir(all_formats[0])
    namespace: dict[str, Any] = {}
    page = (ROOT / "docs" / "how-to" / "export.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, namespace)
        assert np.shape(namespace["probabilities"]) == (2, 10)
        np.testing.assert_allclose(np.sum(namespace["probabilities"], axis=1), 1, atol=1e-2)
    assert namespace["names"] == list("0123456789")


@pytest.mark.parametrize(
    ("policy", "where"),
    [("float16", model_parallel), ("float64", mirrored)],
    ids=["float16, layers on two devices", "float64, two replicas"],
)
def test_every_precision_and_placement_is_exported_in_every_format(policy: str, where: Any, tmp_path: Path) -> None:
    """Within the limits that the formats have by themselves; in float64 as in float32.

    The formats read the weights of one replica, or of a copy on one device and in float32. Servers make the same copy.
    LiteRT converts that copy to float16 and int8 as in the test above.
    """
    formats = {name: given for name, given in FORMATS.items() if name not in ("litert_float16", "litert_int8")}
    metrics = exported(tmp_path, trained(where(), policy), **formats).record.metrics
    for name in formats:
        assert metrics[f"export/{name}/agreement"] >= 0.995, name
        if name == "saved_model" or (policy == "float64" and "litert_" not in name):
            assert metrics[f"export/{name}/max_abs_diff"] <= 1e-5, name


def test_of_tables_some_formats_take_what_the_layer_encoder_returns(tmp_path: Path) -> None:
    """Whatever the columns are called."""
    random = np.random.default_rng(1)
    names = ("file", "allow_pickle", "price")
    frame = pd.DataFrame(random.normal(9, 4, (200, 3)), columns=names)
    data = normalize(table_of(tmp_path, frame, target="price"), NormalizeSettings())
    result = Trained(built_of(MlpSettings(hidden=[8]), data, one_device()), (), 1, 0)
    formats = {name: FORMATS[name] for name in FORMATS.keys() & {"keras", "litert_float32", "onnx"}}
    made = export(result, data, kinds.ExportSettings(formats=formats, reload="here"), tmp_path)
    assert made.note.endswith(": the output of the layer `encoder` in model.keras (export=keras)")
    raw = {name: np.asarray(data.test.features[name]) for name in names[:2]}
    paths = {made.format: made.path, **made.others}
    model = load(str(paths.pop("keras")))
    encoded = keras.models.load_model(tmp_path / "export" / "model.keras").get_layer("encoder")(raw)["numbers"].numpy()
    for path in paths.values():
        np.testing.assert_allclose(load(str(path))(encoded), model(raw), rtol=1e-5, atol=1e-5)


TRAINS = """
import sys, numpy as np, keras
model = keras.models.load_model(sys.argv[1])
names = [layer.name for layer in model.layers]
kinds = {type(layer).__module__.partition(".")[0] for layer in model._flatten_layers()}
model.compile("sgd", "sparse_categorical_crossentropy")
images, labels = np.zeros((8, 8, 8, 1), "float32"), np.arange(8)
before = model.get_weights()
model.fit(images, labels, epochs=1, verbose=0)
changed = sum(not np.array_equal(a, b) for a, b in zip(before, model.get_weights()))
assert not {"stages", "pipeline"} & set(sys.modules)
print(names, sorted(kinds), changed)
"""


def test_a_keras_file_has_its_layers_and_can_be_trained_by_keras_alone(tmp_path: Path) -> None:
    """A network with the project's own BatchNorm, which the file has as Keras' own."""
    built = built_of(ResnetSettings(blocks=1), digits(), one_device())
    layers = [type(layer) for layer in built.network.core.layers]
    result = exported(tmp_path, Trained(built, (), 1, 0), keras=kinds.KerasSettings())
    assert (result.format, result.path.name) == ("keras", "model.keras")
    assert [type(layer) for layer in built.network.core.layers] == layers
    command = [sys.executable, "-I", "-c", TRAINS, str(result.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path)
    names, kinds_loaded, changed = done.stdout.strip().rsplit(" [", 1)[0], "['keras']", int(done.stdout.split()[-1])
    assert names.startswith("['images', 'scaling', 'resnet")
    assert "'probabilities'" in names
    assert kinds_loaded in done.stdout
    assert changed >= 8  # of black images: those behind the last activation, and biases


def test_int8_is_quantized_by_examples_of_the_training_split() -> None:
    images = np.concatenate([part["images"] for part in LiteRT(representative_examples=50)._representative(digits())])
    assert (images.dtype, len(images)) == (np.float32, 50)
    training = {image.tobytes() for image in np.asarray(digits().train.images, np.float32)}
    assert {image.tobytes() for image in images} <= training


@dataclass(frozen=True, kw_only=True)
class Skewed(SavedModel):
    """A SavedModel of another model."""

    by: float = 0.0

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        weights = model.network.get_weights()
        model.network.set_weights([*weights[:-1], weights[-1] + np.linspace(0, self.by, len(weights[-1]))])
        super().write(model, dataset, path)
        model.network.set_weights(weights)


def test_int8_keeps_numbers_of_tables_exact_enough(tmp_path: Path) -> None:
    """In eight bits, a number with an outlier could not be told from its neighbors, and the bins would be wrong."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame(random.normal(size=(600, 4)), columns=["a", "b", "c", "d"])
    frame.loc[0, "a"] = 300.0
    frame["kind"] = np.where(frame.a * frame.b + frame.c > 0, "yes", "no")
    data = normalize(table_of(tmp_path, frame, target="kind"), NormalizeSettings())
    build = partial(build_tabular, network=TabularSettings(hidden=[64]))
    model, _ = after_steps(one_device(), data, settings(), steps=100, build=build)
    formats = {name: FORMATS[name] for name in ("saved_model", "litert_int8")}
    made = export(Trained(model, (), 1, 0), data, kinds.ExportSettings(formats=formats, reload="here"), tmp_path)
    assert made.record.metrics["export/litert_int8/max_abs_diff"] < 0.02


def build_tabular(data: Dataset, where: Strategy, network: Any) -> Model:
    return built_of(network, data, where)


def test_a_format_beyond_its_limits_fails_with_what_to_set(tmp_path: Path) -> None:
    given = {"_target_": f"{__name__}.Skewed", "by": 0.02}
    with pytest.raises(UserError, match=r"the reloaded skewed differ from the model's by up to 0\.\d+") as failed:
        exported(tmp_path, trained(one_device()), skewed=given)
    setting, _, value = failed.value.fix.partition(",")[0].partition("=")
    assert setting == "export.formats.skewed.largest_difference"
    result = exported(tmp_path, trained(one_device()), skewed={**given, "largest_difference": float(value)})
    assert (tmp_path / "export" / "formats.md").exists()
    assert 0 < result.max_abs_diff <= float(value)
    with pytest.raises(UserError, match=r"class for only \d+\.\d+% of the examples. Expected at least 99.50%"):
        exported(tmp_path, trained(one_device()), skewed={**given, "by": 40.0, "largest_difference": 1.0})


@pytest.mark.parametrize(("gap", "agreement"), [(0.9e-4, 1.0), (3e-4, 0.0)])
def test_another_class_counts_only_beyond_the_difference_that_is_allowed(
    gap: float, agreement: float, tmp_path: Path
) -> None:
    """Two classes that are `gap` apart, which the file has the other way round."""
    expected = np.tile(np.array([0.5, 0.5 - gap], np.float32), (100, 1))
    file = tmp_path / "model"
    file.touch()
    answers = {"rows": expected[:, ::-1], "milliseconds": np.array(1.0)}
    task, limit = classification(("a", "b")), SavedModel().limit("float32")
    assert _compared(task, expected, "saved_model", file, limit, answers).agreement == agreement
