"""Each rule applies to exactly the combinations of settings that it documents."""

import dataclasses
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pytest
import yaml

from pipeline.checks.combinations import REFUSED, UNREAD, Rule
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SCHEMAS, TrackingSettings
from pipeline.system import machine
from stages.settings.model import ApplicationSettings, MlpSettings, PrecisionSettings
from stages.settings.results import ExportSettings, KerasSettings
from tests.pipeline.checks import test_combinations
from tests.pipeline.experiments import Patch, experiment

RULES: Mapping[str, Rule] = {rule.combination: rule for rule in (*REFUSED, *UNREAD)}


class Case(NamedTuple):
    """Settings to which a rule applies, and similar settings to which it does not."""

    applies: str
    near: str


FROZEN = "model=mobilenet_v2 model.frozen=true"
REPLICAS = "train=fit strategy=mirrored"

CASES: Mapping[str, Case] = {
    "augment.where=model with train=fit":
        Case("train=fit augment=flip augment.where=model", "train=fit augment=flip"),
    "augment.where=model with strategy=parameter_server,tpu":
        Case("strategy=parameter_server augment=flip augment.where=model", "strategy=parameter_server augment=flip"),
    "cluster=tf_config,hosts,custom with strategy=* without workers":
        Case("cluster=tf_config", "cluster=tf_config strategy=multi_worker"),
    "deterministic=true with strategy=parameter_server":
        Case("strategy=parameter_server deterministic=true", "strategy=parameter_server"),
    "train=fit with strategy=multi_worker,parameter_server,central_storage,model_parallel,tpu":
        Case("train=fit strategy=multi_worker", "train=fit strategy=mirrored"),
    "train=fit with optimizer.accumulation>1":
        Case("train=fit optimizer.accumulation=2", "train=fit optimizer.accumulation=1"),
    "train=fit with optimizer.clip_norm with several replicas":
        Case(f"{REPLICAS} optimizer.clip_norm=1", f"{REPLICAS} strategy.cpu_replicas=1 optimizer.clip_norm=1"),
    "train=fit with train.jit=on with several replicas":
        Case(f"{REPLICAS} train.jit=on", f"{REPLICAS} strategy.cpu_replicas=1 train.jit=on"),
    "train=fit with precision=mixed,mixed_float16 with several replicas":
        Case(f"{REPLICAS} precision=mixed_float16", f"{REPLICAS} strategy.cpu_replicas=1 precision=mixed_float16"),
    "train=fit with precision=float16":
        Case("train=fit precision=float16 optimizer=sgd", "precision=float16 optimizer=sgd"),
    "train=fit with batches that replicas cannot share equally":  # 1,293 examples
        Case(REPLICAS, f"{REPLICAS} strategy.cpu_replicas=3 train.batch_size=33"),
    "train.jit=on with strategy=model_parallel":
        Case("strategy=model_parallel train.jit=on", "strategy=model_parallel train.jit=auto"),
    "optimizer.ema_momentum with precision=bfloat16,float16":
        Case("precision=float16 optimizer=sgd optimizer.ema_momentum=0.9", "precision=float16 optimizer=sgd"),
    "model.frozen=true without a backbone": Case("model.frozen=true", FROZEN),
    "model.weights=imagenet without a backbone":
        Case("model=mlp model.weights=imagenet", "model=mobilenet_v2 model.weights=imagenet"),
    "model.weights=runs:/*,models:/* with tracking=off":
        Case("model.weights=runs:/abc tracking=off", "model.weights=docs tracking=off"),
    "model.frozen=true with strategy=model_parallel":
        Case(f"strategy=model_parallel {FROZEN}", "strategy=model_parallel model=mobilenet_v2"),
    "train.fine_tune_epochs without model.frozen":
        Case("train.fine_tune_epochs=2", f"train.fine_tune_epochs=2 {FROZEN}"),
    "train.fine_tune_epochs with strategy=parameter_server":
        Case(f"strategy=parameter_server {FROZEN} train.fine_tune_epochs=2", f"strategy=parameter_server {FROZEN}"),
    "precision=mixed_float16,float16,float64 with strategy=tpu":
        Case("strategy=tpu precision=float64", "strategy=tpu precision=mixed"),
    "precision=bfloat16 with strategy=multi_worker":
        Case("strategy=multi_worker precision=bfloat16 optimizer=sgd", "precision=bfloat16 optimizer=sgd"),
    "precision=bfloat16,float16 with optimizer=adam,adamw":
        Case("precision=bfloat16", "precision=bfloat16 optimizer=sgd"),
    "precision=mixed_bfloat16,bfloat16 with a GPU of compute capability below 8.0":
        Case("precision=mixed_bfloat16", "precision=mixed_bfloat16 strategy=one_device strategy.device=/cpu:0"),
    "strategy=tpu without a TPU in this machine or a TPU name":
        Case("strategy=tpu strategy.name=local", "strategy=tpu strategy.name=grpc://10.0.0.2:8470"),
    "export.register with tracking=off": Case("export.register=digits tracking=off", "tracking=off"),
    "export.register without a SavedModel": Case("export=keras export.register=digits", "export.register=digits"),
    "export.alias without export.register":
        Case("export.alias=champion", "export.register=digits export.alias=champion"),
    "export.alias with export.promote_if=better,higher without predictions":
        Case("export.register=digits export.alias=champion evaluate.predictions=false",
             "export.register=digits export.alias=champion"),
    "tracking=off": Case("tracking=off tracking.note=hello", "tracking.note=hello"),
    "tracking=local": Case("tracking.uri=http://127.0.0.1:9", "tracking=server tracking.uri=http://127.0.0.1:9"),
    "cluster=local without workers": Case("cluster.restarts=1", "cluster.restarts=1 strategy=multi_worker"),
    "cluster=tf_config,hosts,custom":
        Case("cluster=tf_config strategy=multi_worker strategy.workers=3", "strategy=multi_worker strategy.workers=3"),
    "strategy.devices":
        Case("strategy=mirrored strategy.cpu_replicas=2 strategy.devices=[/cpu:0]", "strategy=mirrored"),
    "train.fine_tune_epochs=0":
        Case("train.fine_tune_layers=3", f"train.fine_tune_layers=3 train.fine_tune_epochs=1 {FROZEN}"),
    "train=fit": Case(f"train=fit {FROZEN} train.cache_features=off", f"{FROZEN} train.cache_features=off"),
    "augment.rand_augment=0": Case("augment.magnitude=0.5", "augment.magnitude=0.5 augment.rand_augment=1"),
    "without image augmentation": Case("augment=none augment.where=input", "augment.mixup=0.1 augment.where=input"),
    "export.alias=null":
        Case("export.promote_if=higher", "export.promote_if=higher export.register=digits export.alias=champion"),
    "precision=float64": Case("precision=float64 precision.tf32=true", "precision=float32 precision.tf32=true"),
    "data.size=null": Case("data=tfds data.name=mnist data.resize=crop", "data=tfds data.size=32 data.resize=crop"),
}  # fmt: skip
"""The cases of each rule, by its combination."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    **{group: tuple(SCHEMAS[group]) for group in ("strategy", "cluster", "train", "optimizer")},
    "precision": dataclasses.fields(PrecisionSettings)[0].metadata["options"],
    "tracking": dataclasses.fields(TrackingSettings)[0].metadata["options"],
    "export.promote_if": next(
        field.metadata["options"] for field in dataclasses.fields(ExportSettings) if field.name == "promote_if"
    ),
    "train.jit": ("auto", "on", "off"),
    "augment.where": ("input", "model"),
    "deterministic": ("true", "false"),
    "model.frozen": ("true", "false"),
}
"""All values of settings with a fixed set of values."""


@pytest.fixture(scope="module")
def base() -> Experiment:
    return experiment()


@pytest.fixture(autouse=True)
def devices(monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.delenv("TPU_NAME", raising=False)


def with_settings(base: Experiment, words: str) -> Experiment:
    """Return an experiment with other settings, without composing it again (half a second)."""
    parts = {
        **base.settings,
        "data": base.settings["load"],
        "tracking": base.tracking,
        "cluster": base.cluster,
        "precision": base.settings["model"].precision,
        "optimizer": base.settings["train"].optimizer,
        "deterministic": base.deterministic,
    }
    for word in words.split():
        name, _, text = word.partition("=")
        group, _, field = name.partition(".")
        if field:
            parts[group] = dataclasses.replace(parts[group], **{field: _value(text)})
        else:
            parts[group] = _option(parts, group, text)
    parts["model"] = dataclasses.replace(parts["model"], precision=parts["precision"])
    parts["train"] = dataclasses.replace(parts["train"], optimizer=parts["optimizer"])
    settings = {stage: parts[base.groups[stage]] for stage in base.settings}
    names = ("tracking", "cluster", "deterministic")
    return dataclasses.replace(base, settings=settings, **{name: parts[name] for name in names})


def _value(text: str) -> Any:
    return text if text in ("on", "off") else yaml.safe_load(text)  # as Hydra reads it


def _option(parts: Mapping[str, Any], group: str, option: str) -> Any:
    changes = {
        "deterministic": lambda: option == "true",
        "precision": lambda: PrecisionSettings(policy=option),
        "tracking": lambda: dataclasses.replace(parts["tracking"], kind=option),
        "export": lambda: dataclasses.replace(parts["export"], formats={"keras": KerasSettings()}),
        "augment": lambda: dataclasses.replace(parts["augment"], horizontal_flip=option == "flip"),
        "model": lambda: dataclasses.replace(
            parts["model"], network=MlpSettings() if option == "mlp" else ApplicationSettings()
        ),
    }
    return changes[group]() if group in changes else SCHEMAS[group][option]()


@pytest.fixture
def old_gpu(request: pytest.FixtureRequest, monkeypatch: Patch) -> None:
    if "GPU" in request.getfixturevalue("combination"):
        monkeypatch.setattr(machine, "gpus", lambda: (machine.Gpu("Tesla T4", (7, 5)),))


def test_every_rule_has_a_case_that_tests_its_suggestion() -> None:
    assert list(CASES) == list(RULES)
    elsewhere = {
        "precision=mixed_bfloat16",  # with a GPU, in tests/pipeline/system/test_machine.py
        "data=tfds data.name=mnist data.resize=crop",  # with a folder of images, in test_combinations.py
    }
    assert {case.applies for case in CASES.values()} - test_combinations.REFUSED.keys() == elsewhere


@pytest.mark.usefixtures("old_gpu")
@pytest.mark.parametrize("combination", RULES)
def test_a_rule_applies_to_its_combination_and_shows_the_values(combination: str, base: Experiment) -> None:
    rule, case = RULES[combination], CASES[combination]
    shown = rule.find(with_settings(base, case.applies))
    assert shown is not None
    assert re.fullmatch(_pattern(combination), shown), shown
    assert rule.find(with_settings(base, case.near)) is None


def _pattern(combination: str) -> str:
    """Return a regular expression that matches a documented combination with the values of an experiment."""
    parts = []
    for part in re.split("( with | without )", combination):
        name, relation, values = re.findall(r"([^=>]*)([=>]?)(.*)", part)[0]
        if relation:
            choices = [re.escape(value).replace(r"\*", ".+") for value in values.split(",")]
            parts.append(f"{name}=(?:{'|'.join(choices)})" if relation == "=" else rf"{name}=\d+")
        else:
            parts.append(rf"{name}=[^ ]+" if re.fullmatch(r"\w+\.\w+", name) else name)
    return re.sub(r" without (model\.frozen|export\.register)=", r" with \1=", "".join(parts))


def _documented() -> list[tuple[str, str, str]]:
    """Return each rule with each of its settings that has fixed values, and the values to which the rule applies."""
    terms = [(combination, *term) for combination in RULES for term in re.findall(r"([\w.]+)=(\S+)", combination)]
    return [term for term in terms if term[1] in CHOICES and term[2] != "*"]


@pytest.mark.usefixtures("old_gpu")
@pytest.mark.parametrize(("combination", "name", "values"), _documented())
def test_a_rule_applies_only_to_the_documented_values(
    combination: str, name: str, values: str, base: Experiment
) -> None:
    rule, words = RULES[combination], CASES[combination].applies.split()
    if name in ("strategy", "cluster"):  # not all options have the same settings
        words = [word for word in words if not word.startswith(f"{name}.")]
    if not any(word.startswith(f"{name}=") for word in words):
        words.insert(len(words) if "." in name else 0, f"{name}=")
    for value in CHOICES[name]:
        is_documented = any(fnmatchcase(value, each) for each in values.split(","))
        given = " ".join(f"{name}={value}" if word.startswith(f"{name}=") else word for word in words)
        assert (rule.find(with_settings(base, given)) is not None) == is_documented, given


def test_a_rule_does_not_apply_to_missing_or_custom_stages(base: Experiment) -> None:
    lacks = dataclasses.replace(base, settings={}, groups={})
    custom = dataclasses.replace(base, settings={stage: {"_target_": "mine.of"} for stage in base.settings})
    for each in (lacks, custom):
        assert [rule.combination for rule in REFUSED if rule.find(each)] == []


def test_settings_without_effect_exist() -> None:
    for rule in UNREAD:
        for name in rule.settings:
            group, _, field = name.partition(".")
            assert any(field in _names(schema) for schema in SCHEMAS[group].values()), name
            assert rule.is_about(name)
            assert rule.is_about(f"{name}.part")
            assert not rule.is_about(f"{name}_other")


def _names(schema: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(schema)]
