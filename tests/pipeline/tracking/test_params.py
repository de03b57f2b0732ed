"""The settings of a run that are its parameters in MLflow."""

from typing import Any

from omegaconf import OmegaConf

from pipeline.provenance.identity import WITHOUT_EFFECT
from pipeline.tracking.params import MOST_SETTINGS, param_texts, run_params
from tests.pipeline.experiments import compose, experiment


def params(*words: str) -> dict[str, Any]:
    """Return the parameters of the run that a user starts with `words`."""
    made = experiment(*words)
    return run_params(made.document, made.choices, [word.partition("=")[0] for word in words], WITHOUT_EFFECT)


USUAL = {
    "data": "digits",
    "model": "cnn",
    "task": "auto",
    "augment": "none",
    "strategy": "one_device",
    "precision": "float32",
    "optimizer": "adam",
    "schedule": "constant",
    "optimizer.learning_rate": 0.002,
    "train.batch_size": 64,
    "train.epochs": 30,
    "seed": 42,
}


def test_the_default_run_has_the_usual_parameters_only() -> None:
    assert params() == USUAL


def test_settings_that_were_given_are_parameters_whatever_their_values() -> None:
    """Else the job of a sweep that uses the default would lack the setting that varies."""
    assert params("optimizer.beta_1=0.9", "train.jit=auto") == {**USUAL, "optimizer.beta_1": 0.9, "train.jit": "auto"}
    effectless = params("train.checkpoint_every_steps=5", "tracking.note=x", "outputs=/tmp/x")
    assert effectless == {**USUAL, "train.checkpoint_every_steps": 5}


def test_settings_that_differ_from_their_defaults_are_parameters() -> None:
    """A file of an experiment or a data set may have set them, instead of the command line."""
    made = compose("experiment=mnist_mlp", "model.network.hidden=[32,16]")
    choices = {group: option for group, option in made.choices.items() if "/" not in group}
    found = run_params(made.document, choices, ["experiment"], (*WITHOUT_EFFECT, "sweep", "debug"))
    assert (found["experiment"], found["data.name"], found["train.epochs"]) == ("mnist_mlp", "mnist", 2)
    assert (found["model"], found["model.network.hidden"]) == ("mlp", [32, 16])
    assert not [name for name in found if name.endswith("_target_")]
    assert len(found) < 30


def test_a_custom_class_is_a_parameter() -> None:
    found = params("optimizer=custom", "optimizer._target_=keras.optimizers.Lion", "optimizer.learning_rate=0.001")
    assert (found["optimizer"], found["optimizer._target_"]) == ("custom", "keras.optimizers.Lion")


def test_the_number_of_parameters_is_limited() -> None:
    document = OmegaConf.create({"seed": 1, "own": {f"s{index}": index for index in range(500)}, "link": "${own.s1}"})
    found = run_params(document, {}, ["own.s499"], ())
    assert len(found) == MOST_SETTINGS
    assert {"seed": 1, "own.s499": 499}.items() <= found.items()
    assert "link" not in found


def test_values_are_texts_as_on_the_command_line() -> None:
    given = {"filters": [32, 64], "names": ["a", "b"], "nested": [[1, 2], [3]], "odd[0]=key": 1.5, "none": None}
    texts = {"filters": "[32,64]", "names": "[a,b]", "nested": "[[1,2],[3]]", "odd_0__key": "1.5", "none": "None"}
    assert param_texts(given) == texts
