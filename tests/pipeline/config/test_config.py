"""Every option composes; every wrong word is refused in one line that says what to type."""

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hydra.core.config_store import ConfigStore

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.experiment import read
from pipeline.config.schemas import SCHEMAS, register_schemas
from pipeline.paths import CONF
from pipeline.planning.earlier import prepare
from pipeline.redaction import redact
from stages.settings.model import CnnSettings
from stages.settings.train import TrainSettings
from tests.pipeline.experiments import command_error, experiment

Command = Callable[..., CompletedProcess[str]]

OPTIONS = sorted(
    (path.parent.name, path.stem)
    for path in CONF.glob("*/*.yaml")
    if path.parent.name not in ("pipeline", "experiment")
)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes(group: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.settings.data.TfdsSettings.check", lambda self, path: None)
    monkeypatch.setattr("stages.settings.table.TableSettings.check", lambda self, path: None)
    monkeypatch.setattr("stages.settings.arrays.ArraysSettings.check", lambda self, path: None)
    monkeypatch.setattr("stages.settings.model.KerasHubSettings.check", lambda self, path: None)
    monkeypatch.setattr("stages.settings.model.KerasHubSettings.requires", ())
    with_it = {"cluster=tf_config": ["strategy=multi_worker"], "strategy=tpu": ["strategy.name=a-name"]}
    with_it["cluster=hosts"] = ["strategy=multi_worker", "cluster.hosts=[localhost:23457,b.invalid:23457]"]
    with_it |= {
        "data=image_folder": ["data.dir=."],
        "data=text_folder": ["data.dir=."],
        "data=tfds": ["data.name=mnist"],
        "model=keras_hub": ["model.network.preset=."],
    }
    with_it |= {f"precision={policy}": ["optimizer=sgd"] for policy in ("bfloat16", "float16")}
    with_it["optimizer=custom"] = ["optimizer._target_=keras.optimizers.Lion"]
    with_it["schedule=custom"] = ["schedule._target_=keras.optimizers.schedules.CosineDecay"]
    given = [
        f"{group}={option}",
        *(["optimizer=sgd"] if option in ("bfloat16", "float16") else []),
        *with_it.get(f"{group}={option}", []),
    ]
    own = experiment(*given, "dry_run=true")
    if (group, option) != ("debug", "none"):  # what is no debug run does not say so
        assert own.choices[group] == option
    prepare(own)


@pytest.mark.slow
def test_every_experiment_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.settings.data.TfdsSettings.check", lambda self, path: None)
    monkeypatch.setattr("stages.settings.data.ImageFolderSettings.check", lambda self, path: None)
    for path in (CONF / "experiment").glob("*.yaml"):
        assert experiment(f"experiment={path.stem}").name == path.stem


def test_settings_are_typed_and_filled() -> None:
    composed = experiment("train.epochs=3", "seed=7", "model.network.filters=[4]")
    train, model = composed.settings["train"], composed.settings["model"]
    assert isinstance(train, TrainSettings)
    assert (train.epochs, train.seed, train.optimizer.name) == (3, 7, "adam")
    assert model.network == CnnSettings(filters=[4])
    assert composed.name == "digits_cnn"
    assert list(composed.pipeline) == [
        "strategy", "load", "normalize", "augment", "inspect", "model", "train", "evaluate", "export",
    ]  # fmt: skip


WRONG = {
    "strategy=mirord": r"unknown option 'strategy=mirord'\. Expected one of: .*mirrored, .*Try: strategy=mirrored",
    "train=fitt": r"unknown option 'train=fitt'\. Expected one of: fit, loop",
    "strategy=multi_worker train=fit": r"keras-team/keras/issues/20585.*Try: train=loop",
    "strategy=tpu": r"strategy=tpu finds no TPU in this machine",
    "trian.epochs=1": r"unknown setting 'trian\.epochs'\. .*Try: train\.epochs=",
    "batch_size=3": r"unknown setting 'batch_size'\. .*Try: train\.batch_size=",
    "modle=cnn": r"unknown setting 'modle'\. .*Try: model=",
    "model.network.filtres=[1]": r"one of: .*, model\.network\.dropout\. Try: 'model\.network\.filters=\[1\]'",
    "+train.epoch=5": r"unknown setting 'train\.epoch'\. .*Try: train\.epochs=",
    "+foo=1": r"unknown setting 'foo'\. Expected one of: ",
    "optimizer._target_=x.Y": r"another option of optimizer\. .*Try: optimizer=custom optimizer\._target_=x\.Y",
    "train.epochs=abc": r"train\.epochs=abc has the wrong type\. Expected a whole number",
    "seed=1.5": r"seed=1\.5 has the wrong type",
    "seed=null": r"seed=null has the wrong type\. Expected a whole number\. Try: seed=<whole number>",
    "train.batch_size=null": r"train\.batch_size=null has the wrong type\. .*Try: train\.batch_size=<whole number>",
    "cluster=hosts cluster.hosts=[null]": r"hosts=\[null\] has the wrong type\. Expected a list",
    "cluster=hosts cluster.hosts=[{a:1}]": r"cluster\.hosts\[0\]={'a': 1} has the wrong type\. Expected a text",
    "cluster=hosts cluster.hosts=a:1": r"cluster\.hosts=a:1 has the wrong type\. Expected a list",
    "cluster=slurm cluster.options=[1]": r"cluster\.options=\[1\] has the wrong type\. Expected a mapping",
    "strategy=mirrored strategy.devices=[[a]]": r"strategy\.devices\[0\]=\['a'\] has the wrong type\. Expected a text",
    "schedule=step schedule.decay_epochs=[{a:1}]": r"decay_epochs\[0\]={'a': 1} has the wrong type\. Expected a number",
    "model.network.filters=[{a:1}]": r"filters\[0\]={'a': 1} has the wrong type\. Expected a whole number",
    "model.network.filters=[8,x]": r"filters=\[8,x\] has the wrong type\. Expected a list",
    "model.network.filters={a:1}": r"filters={a:1} has the wrong type\. Expected a list",
    "model.network.filters[0]=3": r"'model\.network\.filters\[0\]=3' is not an override",
    "tracking.tags={team:{a:1}}": r"tracking\.tags\.team={'a': 1} has the wrong type\. Expected a text",
    "tracking.tags=a": r"tracking\.tags=a has the wrong type\. Expected a mapping",
    "pipeline.load=[a]": r"pipeline\.load=\['a'\] has the wrong type\. Expected a text",
    "train.callbacks={a:1}": r"train\.callbacks={a:1} has the wrong type\. Expected a list",
    "sweep.exclude=[1]": r"sweep\.exclude=\[1\]: .*Cannot assign int",
    "name=[a]": r"name=\['a'\] has the wrong type\. Expected a text\. Try: name=<text>",
    "from={a:1}": r"from={'a': 1} has the wrong type\. Expected a text\. Try: from=<text>",
    "model.network=null": r"model\.network=None is no network\. .*Try: 'model\.network={_target_: ",
    "model.network=cnn": r"model\.network=cnn is no network\. .*Try: 'model\.network={_target_: ",
    "model.network._target_=''": r"model\.network\._target_= cannot be imported \(Empty module name",
    "export.formats.saved_model._target_=''": r"saved_model\._target_= cannot be imported \(Empty module name",
    "deterministic=perhaps": r"deterministic=perhaps has the wrong type\. Expected true or false",
    "train.epochs=0": r"train\.epochs=0 is out of range\. Expected at least 1",
    "train.batch_size=-4": r"train\.batch_size=-4 is out of range",
    "seed=-1": r"seed=-1 is out of range",
    "data.val_fraction=1": r"data\.val_fraction=1\.0 is out of range\. Expected above 0 and below 1",
    "model.network.filters=[8,0]": r"model\.network\.filters\[1\]=0 is out of range",
    "optimizer.learning_rate=nan": r"optimizer\.learning_rate=nan is out of range",
    "train.monitor=speed": r"train\.monitor=speed is not known\. Expected one of: val_loss, val_accuracy",
    "train.epochs=1,2": r"several values to one run.*Try: python -m pipeline -m train\.epochs=<a>,<b>",
    "data": r"'data' is not an override\. Expected key=value.*Try: data=<value>",
    "data=tfds": r"data\.name: .*missing mandatory value: name\. Try: data\.name=<value>",
    "data=mnist data.dir=/nope": r"data\.dir=/nope is not a directory",
    "data=mnist data.dir=/": r"data\.name=mnist is not prepared in /\. .*data\.download=true",
    "strategy=mirrored train.batch_size=1": r"train\.batch_size=1 cannot be shared by 2 replicas\. Expected 2 or more",
    "pipeline.model=null": r"the stage train takes `model`, which no earlier stage makes",
    "train._target_=stages.train.nope": r"train\._target_=.* cannot be imported \(stages\.train has no nope",
    "model.network._target_=nope.x": r"No module named 'nope'",
    "tracking=server tracking.uri=ftp://x": r"tracking\.uri=ftp://x is no address",
    "tracking=server tracking.uri=http://me:secret@127.0.0.1:9": r"http://\*\*\*@127\.0\.0\.1:9 does not answer",
    "tracking=server tracking.uri=htp://me:secret@h": r"tracking\.uri=htp://\*\*\*@h is no address",
    "name=../up": r"name=\.\./up cannot name a folder.*Try: name=up",
    "schedule.warmup_epochs=30": r"schedule\.warmup_epochs=30 fills all of train\.epochs=30\. Expected less than 30",
    "tags.note=x": r"unknown setting 'tags\.note'.*Try: tracking\.note=",
    "tracking.tag.team=x": r"unknown setting 'tracking\.tag\.team'.*Try: tracking\.tags=",
    "tracking.tags.team=x tracking=off": r"tracking\.tags\.team has no effect with tracking=off",
    "+model.network.blah=3": r"unknown setting 'model\.network\.blah'\. Expected one of: model\.network\.filters",
    "optimizer=null": r"unknown option 'optimizer=null'\. .*sgd\. Try: optimizer=<option>",
    "strategy=mirrored strategy.devices=[/cpu:0,cpu]": r"devices\[1\]=cpu is not valid\. .*Try: 'strategy\.devices=\[",
    "outputs=/proc/nope": r"outputs=/proc/nope cannot be written",
    "-m +tracking.tags.team=a,b": r"its tracking is not that of the first job",
    "-m +tracking.tags.api_key=first_key,second_key": r"api_key=\*\*\* .*its tracking is not that of the first",
    "-m strategy=one_device,nope": r"unknown option 'strategy=nope'",
    "train.epochs=1 -m strategy=one_device,mirrored train.batch_size=1": r"job 2 of 2 .*cannot be shared by 2 replicas",
}


END_TO_END = [
    "strategy=mirord",
    "train.epochs=abc",
    "tracking=server tracking.uri=htp://me:secret@h",
    "outputs=/proc/nope",
]
"""Of each way to be refused, by Hydra, by a type and by a check, one that is typed."""


@pytest.mark.parametrize("given", [given for given in WRONG if "-m" not in given])
def test_what_is_wrong_is_said_in_one_line(given: str, tmp_path: Path) -> None:
    words = [*given.split(), *([] if "outputs=" in given else [f"outputs={tmp_path}/outputs"])]
    said = str(command_error(words))
    assert len(said.splitlines()) == 1
    assert re.search(WRONG[given], redact(said)), said
    assert not any(path.is_file() for path in tmp_path.rglob("*"))  # nothing is recorded


@pytest.mark.parametrize("given", [*END_TO_END, *(given for given in WRONG if "-m" in given)])
def test_the_command_says_it_on_standard_error(given: str, pipeline_command: Command, tmp_path: Path) -> None:
    done = pipeline_command(*given.split(), *([] if "outputs=" in given else ["outputs=out"]), trains=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert re.search(WRONG[given], done.stderr), done.stderr
    assert "secret" not in done.stderr
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("given", [("--help",), ("trian.epochs=1",), ("--cfg", "job")])
def test_answers_come_at_once(given: tuple[str, ...], tmp_path: Path) -> None:
    """By the processor's time: a machine with other work on it takes longer by the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "pipeline", *given], cwd=tmp_path, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5.0  # TensorFlow alone takes more
    assert done.returncode == (2 if "trian" in given[0] else 0)


@pytest.mark.slow
def test_a_server_that_swallows_requests_is_known_in_time(pipeline_command: Command, tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        uri = f"http://127.0.0.1:{listening.getsockname()[1]}"
        given = ("tracking=server", f"tracking.uri={uri}", f"outputs={tmp_path}")
        done = pipeline_command(*given, trains=False, timeout=120)  # it waits 5 s for the server
    assert done.returncode == 2
    assert "does not answer (timed out)" in done.stderr


@pytest.mark.parametrize("layers", [".conv2d*=mixed_bfloat16", "={conv2d*: mixed_bfloat16}"])
def test_patterns_of_layers_are_typed_as_names(layers: str) -> None:
    """Hydra's own names hold no asterisk."""
    composed = Composer(read_arguments([f"precision.layers{layers}", "precision.layers.head=float32"])).one()
    found = read(composed.document, composed.choices).settings["model"].precision.layers
    assert list(found.items()) == [("conv2d*", "mixed_bfloat16"), ("head", "float32")]


def test_schemas_are_in_every_store_of_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's launchers replace the store of a process that they start."""
    register_schemas()
    monkeypatch.setattr(ConfigStore.instance(), "repo", {})
    register_schemas()
    assert set(ConfigStore.instance().repo["schema"]) == set(SCHEMAS)
