"""Wrong settings are refused with a one-line error that shows what to type, and nothing is recorded."""

import re
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pipeline.api import open_run
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.commands import runs
from pipeline.config.experiment import read
from stages.errors import UserError
from stages.settings.model import CnnSettings
from stages.settings.train import TrainSettings
from tests.pipeline.experiments import assert_refused, experiment

Command = Callable[..., CompletedProcess[str]]


def test_settings_are_typed_and_filled() -> None:
    composed = experiment("train.epochs=3", "seed=7", "model.network.filters=[4]")
    train, model = composed.settings["train"], composed.settings["model"]
    assert isinstance(train, TrainSettings)
    assert (train.epochs, train.seed, train.optimizer.name) == (3, 7, "adam")
    assert model.network == CnnSettings(filters=[4])
    assert composed.name == "digits_cnn"
    assert read(composed.document, {"data": "digits", "model": "vision/small"}).name == "digits_vision_small"
    stages = "strategy load normalize augment inspect model train evaluate export"
    assert list(composed.pipeline) == stages.split()


def test_an_experiment_is_named_after_its_file_or_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Häuser"
    folder.mkdir()
    names = {"price list (2024).csv": "price-list-2024", "train.csv": "Häuser", "x" * 99 + ".tsv": "x" * 40}
    for file, name in names.items():
        (folder / file).write_text("a,b\n1,2\n")
        given = experiment("data=table", f"data.files='{folder / file}'", "data.target=b")
        assert given.name == f"{name}_auto"
    for label in ("good", "bad"):
        (folder / label).mkdir()
        for suffix in ("txt", "png"):
            (folder / label / f"1.{suffix}").touch()
    assert experiment("data=text_folder", f"data.dir='{folder}'").name == "Häuser_auto"
    assert experiment("data=image_folder", f"data.dir='{folder}'", "name=mine").name == "mine"


WRONG = {
    # Hydra 1.4 sets an item of a list.
    **({} if version("hydra-core") >= "1.4" else {"model.network.filters[0]=3": r"filters\[0\]=3' is not an override"}),
    "-m seed=range(1,inf)": r"range\(1,inf\) never ends",
    "-m train.epochs=range(1,4,nan)": r"range\(1,4,nan\) never ends",
    "sweep=grid train.epochs=range(1,4,0)": r"range\(1,4,0\) never ends",
    "data.features={Größe:number}": r"not an override\. .*; names with letters such as ö are only supported in YAML",
    "strategy=mirord": r"unknown option 'strategy=mirord'\. Expected one of: .*mirrored, .*Try: strategy=mirrored",
    "trian.epochs=1": r"unknown setting 'trian\.epochs'\. .*Try: train\.epochs=",
    "model.network.filtres=[1]": r"one of: .*, model\.network\.dropout\. Try: 'model\.network\.filters=\[1\]'",
    "train={epoch:5}": r"unknown setting 'train\.epoch'\. .*Try: train\.epochs=…",
    "+train.epoch=5": r"unknown setting 'train\.epoch'\. .*Try: train\.epochs=",
    "~tracking.options.x": r"cannot delete tracking\.options\.x, which does not exist\. Expected an existing",
    "+foo=1": r"unknown setting 'foo'\. Expected one of: ",
    "optimizer._target_=x.Y": r"not a setting of the chosen option .*.*Try: optimizer=custom optimizer\._target_=x\.Y",
    "sweep.trials=5": r"the chosen option of sweep\. .*, sweep=random, sweep=tpe\. Try: sweep=<option> sweep\.trials=5",
    "train.epochs=abc": r"train\.epochs=abc has the wrong type\. Expected a whole number",
    "seed=null": r"seed=null has the wrong type\. Expected a whole number\. Try: seed=<whole number>",
    "cluster=hosts cluster.hosts=[null]": r"hosts=\[null\] has the wrong type\. Expected a list",
    "model.network.filters=[8,x]": r"filters=\[8,x\] has the wrong type\. Expected a list",
    "model.network=null": r"model\.network=None is not a network\. .*Try: 'model\.network={_target_: ",
    "model.network._target_=''": r"model\.network\._target_= cannot be imported \(Empty module name",
    "deterministic=perhaps": r"deterministic=perhaps has the wrong type\. Expected true or false",
    "train.epochs=0": r"train\.epochs=0 is out of range\. Expected at least 1",
    "model.network.filters=[8,0]": r"model\.network\.filters\[1\]=0 is out of range",
    "train.epochs=1,2": r"values, but a single run takes only one\. .*Try: python -m pipeline -m train\.epochs=1,2",
    "data": r"'data' is not an override\. Expected key=value.*Try: data=<value>",
    "data=tfds": r"data\.name: .*missing mandatory value: name\. Try: data\.name=<value>",
    "data=mnist data.dir=/": r"data\.name=mnist is not prepared in /\. .*data\.download=true",
    "strategy=mirrored train.batch_size=1": r"train\.batch_size=1 is too small for 2 replicas\. Expected at least 2",
    "train._target_=stages.train.nope": r"train\._target_=.* cannot be imported \(.* has no attribute .nope",
    "tracking=server tracking.uri=ftp://x": r"tracking\.uri=ftp://x is not the address of an MLflow server",
    "tracking=server tracking.uri=http://h:port": r"tracking\.uri=http://h:port is not the address of an MLflow server",
    "tracking=server tracking.uri=http://me:secret@127.0.0.1:9": r"http://\*\*\*@127\.0\.0\.1:9 does not respond",
    "name=../up": r"name=\.\./up cannot be the name of a folder.*Try: name=up",
    "schedule.warmup_epochs=30": r"schedule\.warmup_epochs=30 leaves no epoch of train\.epochs=30\. Expected less",
    "tracking.tags.team=x tracking=off": r"tracking\.tags\.team has no effect with tracking=off",
    "strategy=mirrored strategy.devices=[/cpu:0,cpu]": r"devices\[1\]=cpu is not valid\. .*Try: 'strategy\.devices=\[",
    "optimizer=custom optimizer._target_=keras.optimizers.SGD optimizer.arguments={learning_rate:1}": "are both set",
}
TYPED = {
    "strategy=mirord": WRONG["strategy=mirord"],
    "tracking=server tracking.uri=htp://me:secret@h": r"tracking\.uri=htp://\*\*\*@h is not the address",
    "outputs=/proc/nope": r"outputs=/proc/nope cannot be written",
    "-m +tracking.tags.api_key=first_key,second_key": r"api_key=\*\*\*.*its tracking differs from the first job's",
    "-m strategy=one_device,nope": r"unknown option 'strategy=nope'",
    "-m seed=range(1,4,0)": r"range\(1,4,0\) never ends\. Expected .*Try: seed=range\(1,4\)",
    "train.epochs=1 -m strategy=one_device,mirrored train.batch_size=1": r"job 2 of 2 .*is too small for 2 replicas",
}
"""One command line for each kind of refusal: of a name, by a check, and in a sweep."""


@pytest.mark.parametrize("given", WRONG)
def test_wrong_settings_are_refused_in_one_line(given: str, tmp_path: Path) -> None:
    assert_refused([f"outputs={tmp_path}/outputs", *given.split()], WRONG[given])
    assert not any(path.is_file() for path in tmp_path.rglob("*"))  # nothing is recorded


@pytest.mark.parametrize("given", TYPED)
def test_the_command_prints_errors_to_standard_error(given: str, pipeline_command: Command, tmp_path: Path) -> None:
    done = pipeline_command("outputs=out", *given.split(), trains=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert re.search(TYPED[given], done.stderr), done.stderr
    assert "secret" not in done.stderr
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_server_that_does_not_respond_is_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.tracking.store.SERVER_TIMEOUT_SECONDS", 0.3)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        uri = f"http://127.0.0.1:{listening.getsockname()[1]}"
        words = ["tracking=server", f"tracking.uri={uri}", f"outputs={tmp_path}"]
        assert_refused(words, r"does not respond \(timed out\)")


@pytest.mark.parametrize("layers", [".conv2d*=mixed_bfloat16", "={conv2d*: mixed_bfloat16}"])
def test_patterns_of_layers_are_accepted_as_names(layers: str) -> None:
    """Hydra itself does not accept asterisks in names."""
    composed = Composer(read_arguments([f"precision.layers{layers}", "precision.layers.head=float32"])).one()
    policies = read(composed.document, composed.choices).settings["model"].precision.layers
    assert list(policies.items()) == [("conv2d*", "mixed_bfloat16"), ("head", "float32")]


IMPOSSIBLE = {
    "s3://bucket/runs": "is a URL, but results", "file:///tmp/x": "is a URL, but results",
}  # fmt: skip


@pytest.mark.parametrize("place", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_a_url_as_outputs_is_refused_in_one_line_by_every_command(place: str) -> None:
    commands = (
        (experiment, f"outputs='{place}'"),
        (runs.main.parse_args, [f"outputs={place}"]),
        (open_run, "4d9eb298", place),
    )
    for command, *arguments in commands:
        with pytest.raises(UserError, match=rf"^[^\n]*{IMPOSSIBLE[place]}[^\n]*Try: outputs=./outputs"):
            command(*arguments)


def test_empty_outputs_mean_the_default_in_every_command() -> None:
    default = experiment().outputs
    assert experiment("outputs=''").outputs == default
    for words in ([], ["outputs="], ["--outputs", ""]):
        assert runs.main.parse_args(words).outputs == default
