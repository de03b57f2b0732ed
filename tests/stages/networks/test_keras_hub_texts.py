"""Backbones of KerasHub for texts: the preset's own tokens and answers, under every law that other networks keep."""

from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from stages.errors import UserError
from stages.export import export
from stages.features.encoder import encoding
from stages.load.table import table
from stages.normalize import normalize
from stages.results import Dataset, Model, Strategy
from stages.settings.data import NormalizeSettings
from stages.settings.model import KerasHubSettings
from stages.settings.places import content_digest
from stages.settings.results import ExportSettings, KerasSettings, SavedModelSettings
from stages.settings.table import TableSettings
from tests.stages.experiments import assert_replicas_equal_one_device, built_of, flat, one_device, real_digits, settings
from tests.stages.training import stopped

pytestmark = pytest.mark.engines
keras_hub = pytest.importorskip("keras_hub", reason="needs the extra hub")
pytest.importorskip("tensorflow_text", reason="needs the extra hub")

WORDS = ["good", "bad", "film", "very", "gut", "übel", "go", "##od", "##d", "b", "##a"]
TEXTS = ["Good film, very good!", "baad  FILM", "übel é", "", "good " * 20]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def preset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny backbone with weights and its tokenizer: of word pieces, which pools, or of pairs of bytes."""
    folder = str(tmp_path_factory.mktemp("hub") / request.param)
    sizes: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8, "dropout": 0.3}
    sizes["max_sequence_length"] = 14
    keras.utils.set_random_seed(5)
    if request.param == "bert":
        tokenizer = keras_hub.tokenizers.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], True)
        backbone = keras_hub.models.BertBackbone(vocabulary_size=tokenizer.vocabulary_size(), **sizes)
    else:
        from keras_hub.src.tokenizers.byte_pair_tokenizer import bytes_to_unicode

        tokens = ["<s>", "<pad>", "</s>", "<mask>", *bytes_to_unicode()[1], "oo", "ood", "good"]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        tokenizer = keras_hub.tokenizers.RobertaTokenizer(vocabulary, ["o o", "oo d", "g ood"])
        backbone = keras_hub.models.RobertaBackbone(vocabulary_size=len(vocabulary), **sizes)
    for part in (backbone, tokenizer):
        part.save_to_preset(folder)
    return folder


def load(folder: Path, **features: str) -> Dataset:
    random = np.random.default_rng(5)
    texts = [
        " ".join(random.choice(["good", "bad", "film", "very", "guet"], size)) for size in random.integers(0, 12, 200)
    ]
    frame = pd.DataFrame({"review": texts, "title": texts[::-1], "size": random.normal(size=200)})
    frame.assign(liked=["yes" if "good" in text else "no" for text in texts]).to_csv(
        folder / "reviews.csv", index=False
    )
    return table(TableSettings(files=str(folder / "reviews.csv"), target="liked", features=features))


@pytest.fixture(scope="module")
def data(preset: str, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A text alone."""
    loaded = load(tmp_path_factory.mktemp("table"), review="text", title="leave_out", size="leave_out")
    return normalize(loaded, NormalizeSettings(tokenizer=preset))


def build(data: Dataset, where: Strategy, preset: str, frozen: bool = False) -> Model:
    return built_of(KerasHubSettings(preset=preset, dropout=0.3), data, where, frozen=frozen)


def test_tokens_and_answers_are_those_of_the_preset(data: Dataset, preset: str) -> None:
    made = build(data, one_device(), preset)
    assert data.encoder is not None
    numbers = encoding(data.encoder)({"review": np.array(TEXTS, object)}, slice(None))["review"]
    kind = keras_hub.models.TextClassifierPreprocessor
    given = kind.from_preset(preset, sequence_length=numbers.shape[1])(TEXTS)
    np.testing.assert_array_equal(numbers, np.where(given["padding_mask"], given["token_ids"] + 1, 0))
    values = keras_hub.models.Backbone.from_preset(preset)(given)
    if isinstance(values, dict):
        features = np.asarray(values["pooled_output"])
    else:
        is_token = np.asarray(given["padding_mask"])[..., None]
        features = (np.asarray(values) * is_token).sum(axis=1) / is_token.sum(axis=1)
    head: Any = made.network.core.get_layer("head")
    expected = features @ np.asarray(head.kernel) + np.asarray(head.bias)
    np.testing.assert_allclose(made.network(numbers), expected, rtol=1e-5, atol=1e-5)
    assert made.record.params["preset"] == content_digest(preset)


@pytest.mark.parametrize("preset", ["bert"], indirect=True)
def test_replicas_equal_one_device(data: Dataset, preset: str) -> None:
    made = partial(build, preset=preset)
    assert_replicas_equal_one_device(data, settings(batch_size=50), 3, made, 3)


@pytest.mark.parametrize("preset", ["bert"], indirect=True)
def test_frozen_features_two_phases_resumed_and_exported(data: Dataset, preset: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"dataset": data, "build": partial(build, preset=preset, frozen=True), "epochs": 2}
    given |= {"fine_tune_epochs": 2, "fine_tune_layers": 2, "steps_per_call": None, "early_stopping_patience": 0}
    whole, _ = stopped.run(one_device(), None, **given)
    assert str(whole.record.params["features"]).startswith("on: 8")
    stopped.stop(one_device(), tmp_path, 5, **given)
    resumed, told = stopped.run(one_device(), tmp_path, **given)
    assert told.resumed_from
    np.testing.assert_array_equal(flat(resumed.model.network), flat(whole.model.network))
    formats = {"saved_model": SavedModelSettings(), "keras": KerasSettings()}
    exported = export(whole, data, ExportSettings(formats=formats, reload="process"), tmp_path)
    differences = [value for name, value in exported.record.metrics.items() if name.endswith("/max_abs_diff")]
    assert max(differences) <= 1e-6


@pytest.mark.parametrize("preset", ["bert"], indirect=True)
def test_a_number_is_joined(preset: str, tmp_path: Path) -> None:
    loaded = normalize(load(tmp_path, review="text", title="leave_out"), NormalizeSettings(tokenizer=preset, length=9))
    assert {name: column.shape[1] for name, column in loaded.train.inputs.items()} == {"numbers": 1, "review": 9}
    assert build(loaded, one_device(), preset).network.output_shape == (None, 2)


@pytest.mark.parametrize("preset", ["bert"], indirect=True)
def test_wrong_combinations_are_refused(preset: str, data: Dataset, tmp_path: Path) -> None:
    given = NormalizeSettings(tokenizer=preset)
    with pytest.raises(UserError, match=r"requires one text column, but .* has 2 \(review, title\)"):
        normalize(load(tmp_path, review="text", title="text"), given)
    with pytest.raises(UserError, match=r"requires one text column, but .* has 0"):
        normalize(load(tmp_path, review="leave_out", title="leave_out"), given)
    with pytest.raises(UserError, match=r"normalize.length=15 .* Expected at most 14"):
        normalize(load(tmp_path, review="text"), NormalizeSettings(tokenizer=preset, length=15))
    with pytest.raises(UserError, match=r"keras_hub cannot be built for images of shape \(8, 8, 1\)"):
        build(real_digits(50), one_device(), preset)
    with pytest.raises(UserError, match="does not fit review, whose tokens come from a different tokenizer"):
        build(normalize(load(tmp_path, review="text"), NormalizeSettings()), one_device(), preset)
    (tmp_path / "config.json").touch()
    with pytest.raises(UserError, match="has no tokenizer for the texts of review"):
        normalize(load(tmp_path, review="text"), NormalizeSettings(tokenizer=str(tmp_path)))
    images = tmp_path / "images"
    keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64], stackwise_num_blocks=[1],
        stackwise_num_strides=[1], block_type="basic_block", use_pre_activation=False, image_shape=(None, None, 3),
    ).save_to_preset(str(images))  # fmt: skip
    with pytest.raises(UserError, match="is a ResNetBackbone, which requires inputs other than texts"):
        build(data, one_device(), str(images))
