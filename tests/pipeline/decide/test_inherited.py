"""A command inherits settings, but not code, from a folder that may come from somebody else."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.commands.clean import main as clean
from pipeline.commands.compare import main as compare
from pipeline.commands.diff import main as diff
from pipeline.commands.runs import main as runs_command
from pipeline.commands.sync import main as sync
from pipeline.decide.inherited import inherit_overrides
from pipeline.paths import CONF
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import Summary
from pipeline.tracking.store import Store
from stages.errors import UserError
from tests.pipeline.experiments import Patch, Printed, write_files, write_run

HARMLESS = [
    "train.epochs=7", "strategy=mirrored", "tracking.tags.team=x", "~pipeline.inspect", "++train.batch_size=2",
    "data=image_folder", "data.dir=/somewhere",
]  # fmt: skip

ASKED = (
    "model.network._target_=os.system", "+train.callbacks=[{_target_: evil.Watch}]",
    "+a.b.c=[[{x: [{_target_: subprocess.run}]}]]", "data._target_=${tracking.tags.x}",
    "+model.network='${oc.decode:\"{_target_: evil.net}\"}'", "optimizer='${oc.decode:adam}'",
    "tracking.tags.x=${oc.env:HOME}", "data.dir=[a,'${oc.env:HOME}']", "train={epochs: ['${seed}']}",
    "tracking.note='a \\' ${marker:x}'", "cluster.address=evil:1", "cluster={hosts: [a:1]}",
    "+cluster.options.wrap=x",
)  # fmt: skip

OUTSIDE = ("model={}", "optimizer={}", "+experiment={}", "model=./{}")
"""Overrides with a path as the option."""

NEVER = ("--config-dir=/tmp/evil", "-m", "hydra.searchpath=[file:///tmp]", "+hydra.job.chdir=true", "a b=1", "")


def all_overrides(words: Sequence[str]) -> list[str]:
    """Return the overrides of a command line, including those that it inherits."""
    arguments = inherit_overrides(read_arguments(words))
    return [*arguments.overrides, *arguments.inherited]


def foreign(folder: Path, *overrides: str) -> Path:
    return write_run(folder / "from_a_friend", "KILLED", overrides=list(overrides))


@pytest.mark.parametrize("option", ["resume", "fork"])
def test_settings_are_inherited(option: str, tmp_path: Path) -> None:
    assert all_overrides([f"{option}={foreign(tmp_path, *HARMLESS)}"])[1:] == HARMLESS


@pytest.mark.parametrize("run", ["from_a_friend", "{}/runs/e/from_a_friend"])
def test_typed_settings_come_last_and_outputs_may_refer(run: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """A command that inherits is a single run, even if the experiment file defines a sweep."""
    monkeypatch.setenv("PLACE", str(place := tmp_path / "it's"))
    foreign(place / "runs" / "e", "train.batch_size=128", "seed=3", "experiment=mine")
    write_files(tmp_path, {"experiment/mine.yaml": "# @package _global_\nsweep: {over: {seed: [1, 2]}}\n"})
    words = [f"fork={run.format(place)}", "outputs=${oc.env:PLACE}", "train={batch_size: 32}"]
    composer = Composer(inherit_overrides(read_arguments([*words, f"--config-dir={tmp_path}"])))
    assert not composer.is_sweep
    assert composer.one().document.train.batch_size == 32
    composer = Composer(inherit_overrides(read_arguments([*words, f"--config-dir={tmp_path}", "sweep=seeds"])))
    assert len({job.document.seed for job in composer.jobs()}) > 1


def test_what_options_chose_for_a_run_stays_chosen(tmp_path: Path) -> None:
    """A table was trained by other options in an earlier version. Typed ones and those of other data win."""
    chosen = {"data": "table", "model": "auto", "optimizer": "adam", "schedule": "constant", "train": "loop"}
    run = write_run(tmp_path / "run", "KILLED")
    words = ["data=table", "data.files=a.csv"]
    Summary("abcdef12", "KILLED", "tried", run, chosen, overrides=words).write(run)
    RunFolder(run).write_config("model: {network: {_target_: stages.networks.auto.auto}}")
    pinned = ["optimizer=adam", "schedule=constant", "train=loop", "model.network.columns=mlp"]
    assert all_overrides([f"fork={run}"])[3:] == pinned
    assert all_overrides([f"fork={run}", "optimizer=sgd"])[4:] == pinned[1:]
    assert all_overrides([f"fork={run}", "model=mlp"])[4:] == pinned[:3]
    assert not {*pinned} & {*all_overrides([f"fork={run}", "data=digits"])}
    RunFolder(run).write_config("model: {network: {columns: tabular}}")
    assert all_overrides([f"fork={run}"])[3:] == pinned[:3]
    RunFolder(run).write_config("data: {features: {file: image}}\nmodel: {network: {columns: tabular}}")
    assert all_overrides([f"fork={run}"])[3:] == [*pinned[:3], "data.only_images=true"]
    assert all_overrides([f"fork={run}", "data.only_images=false"])[4:] == pinned[:3]
    RunFolder(run).write_config("data: {features: {file: image}, only_images: false}\nmodel: {network: {columns: mlp}}")
    assert all_overrides([f"fork={run}"])[3:] == pinned[:3]


def test_settings_of_a_replaced_option_are_not_inherited(tmp_path: Path) -> None:
    """Neither is where the other run started from, nor its location."""
    own = ["optimizer=sgd", "optimizer.momentum=0.8", "strategy.cpu_replicas=2", "train={epochs: 5}"]
    of_one, registered = ["fork=1a", "fork_weights=last", "outputs=there"], ["export.register=mine"]
    choices = {"optimizer": "sgd", "strategy": "mirrored", "train": "loop"}
    place = tmp_path / "made"
    place.mkdir()
    Summary("1b", "KILLED", "made", place, choices, overrides=[*own, *of_one, *registered]).write(place)
    for option, more in (("resume", [*of_one, *registered]), ("fork", registered), ("run", [])):
        assert all_overrides([f"{option}={place}", "optimizer=sgd"])[2:] == [*own[1:], *more]
        assert all_overrides([f"{option}={place}", "strategy='one_device'"])[2:] == [*own[:2], own[3], *more]
        assert all_overrides([f"{option}={place}", "optimizer={momentum: 0.5}"])[2:] == [*own[1:], *more]
        assert all_overrides([f"{option}={place}", "optimizer=adam"])[2:] == [*own[2:], *more]


@pytest.mark.parametrize("override", ASKED)
def test_code_must_be_typed_again(override: str, tmp_path: Path) -> None:
    place = foreign(tmp_path, "train.epochs=7", override)
    with pytest.raises(UserError, match=r"is not inherited, because it holds .* or code") as raised:
        all_overrides([f"resume={place}"])
    typed = shlex.split(raised.value.fix)
    assert typed == [f"resume={place}", override]
    assert all_overrides(typed)[1:] == [override, "train.epochs=7"]
    key = override.lstrip("+").partition("=")[0]
    assert override not in all_overrides([f"resume={place}", f"{key}=x"])


def test_a_second_line_for_the_script_of_a_cluster_must_be_typed_again(tmp_path: Path) -> None:
    place = foreign(tmp_path, "cluster=slurm", "cluster.account=team", "cluster.partition='a\nevil'")
    with pytest.raises(UserError, match=r"cluster\.partition is not inherited"):
        all_overrides([f"resume={place}"])


@pytest.mark.parametrize("option", ["resume", "fork", "run"])
def test_a_file_outside_of_the_folders_of_options_is_not_an_option(option: str, tmp_path: Path) -> None:
    """Hydra alone would read `model=../../somewhere/file`, which may be a file of the received folder."""
    write_files(tmp_path, {"evil.yaml": "network: {_target_: os.system}\n"})
    outside = os.path.relpath(tmp_path / "evil", CONF / "model")
    for number, override in enumerate(text.format(outside) for text in OUTSIDE):
        run = write_run(tmp_path / str(number), "KILLED", overrides=[override])
        with pytest.raises(UserError, match="unknown option"):
            Composer(inherit_overrides(read_arguments([f"{option}={run}"]))).one()


def test_targets_are_compared_after_resolution(tmp_path: Path) -> None:
    """A user's file may build a `_target_` from settings; values of another run cannot change the result."""
    write_files(
        tmp_path,
        {
            "experiment/mine.yaml": """\
# @package _global_
model: {network: {_target_: "stages.networks.cnn.${tracking.tags.which}"}}
tracking: {tags: {which: cnn}}
"""
        },
    )
    words = [f"--config-dir={tmp_path}", "experiment=mine"]
    run = write_run(tmp_path / "run", "KILLED", overrides=["tracking.tags.which=resnet", "seed=3"])
    with pytest.raises(UserError, match=r"would import stages\.networks\.cnn\.resnet"):
        Composer(inherit_overrides(read_arguments([f"fork={run}", *words]))).one()
    composer = Composer(inherit_overrides(read_arguments([f"fork={run}", *words, "tracking.tags.which=resnet"])))
    assert composer.one().document.seed == 3


def test_nothing_in_a_folder_is_resolved(tmp_path: Path, capsys: Printed) -> None:
    """Each text in the run's files is an interpolation that would leave a mark if it were resolved."""
    marks: list[str] = []
    OmegaConf.register_new_resolver("mark", lambda: marks.append("x"), replace=True)
    mark = "${mark:}"
    for name in ("a", "b"):
        place = tmp_path / "runs" / "made" / name
        write_run(place, overrides=[f"train.epochs={mark}"], precision=mark, error=mark, exported={mark: mark})
        write_files(place, {"config.yaml": f"x: '{mark}'\nnested: [{{y: '{mark} and more'}}]\n"})
    runs = [str(tmp_path / "runs" / "made" / name) for name in "ab"]
    for command, words in ((runs_command, []), (compare, runs), (diff, runs), (clean, []), (sync, runs)):
        command([f"outputs={tmp_path}", *words])
    for option in ("fork", "resume", "run"):
        with pytest.raises(UserError, match="is not inherited"):
            all_overrides([f"{option}={runs[0]}", f"outputs={tmp_path}"])
    config = RunFolder(Path(runs[0])).config
    assert (config.x, config.nested[0].y) == (mark, f"{mark} and more")
    assert not marks


@pytest.mark.parametrize("override", NEVER)
def test_flags_among_the_overrides_of_a_run_are_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not an override|Hydra's own settings"):
        Composer(inherit_overrides(read_arguments([f"resume={foreign(tmp_path, override)}"])))


def test_a_model_is_looked_up_in_the_store_that_the_command_names(tmp_path: Path, monkeypatch: Patch) -> None:
    """The command names it by an address, or by an option of the project or of the user."""
    write_files(tmp_path, {"tracking/ours.yaml": "defaults: [server, _self_]\nuri: http://127.0.0.1:4711\n"})
    asked: list[tuple[str, str | None]] = []

    def look_up(uri: str, store: Store) -> str:
        asked.append((store.settings.kind, store.settings.uri))
        raise UserError("asked")

    monkeypatch.setattr("pipeline.decide.inherited.run_of_model", look_up)
    for words in ([], ["tracking=server"], ["tracking=ours"], ["tracking=ours", "tracking.uri=http://127.0.0.1:8"]):
        with pytest.raises(UserError, match="asked"):
            all_overrides(["run=models:/digits@champion", *words, f"outputs={tmp_path}", f"--config-dir={tmp_path}"])
    addresses = ["http://127.0.0.1:5000", "http://127.0.0.1:4711", "http://127.0.0.1:8"]
    assert asked == [("local", None), *(("server", address) for address in addresses)]
