"""Advice of the command line, the configuration, sweeps, searches and the other commands."""

import json
import socket
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline import api
from pipeline.checks.callbacks import check_arguments
from pipeline.checks.data_fits import check_data
from pipeline.command_line.arguments import refuse_unknown_verb
from pipeline.commands import clean, diff, predict, ui
from pipeline.config.schemas import TrackingSettings
from pipeline.decide.decision import decide
from pipeline.decide.fork import refuse_without_epochs
from pipeline.decide.job import Job
from pipeline.decide.resume import _named_run
from pipeline.execute.claim import claimed
from pipeline.execute.stages import StageRunner
from pipeline.execute.task import Task
from pipeline.internals.hydra import parse
from pipeline.internals.mlflow import LOCATIONS
from pipeline.launch.joined import TAKEN, Hosts, _calls, wait_for_members
from pipeline.launch.ray import RayJob
from pipeline.launch.slurm import _refuse_secrets
from pipeline.runs.facts import Facts
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import NAME
from pipeline.runs.summary import Summary
from pipeline.search.plan import Axis, Goal, read_axes
from pipeline.search.trials import Trials, refuse_goal
from pipeline.serving import files, models, signatures
from pipeline.sweep import sync
from pipeline.sweep.claim import to_resume
from pipeline.sweep.index import latest, read_index
from pipeline.sweep.select import _runs, read_all, select
from pipeline.sweep.sweep import jobs_to_finish
from pipeline.system.environment import check_keras_file
from pipeline.system.machine import free_port
from pipeline.tracking.pending import settings_for
from pipeline.tracking.store import _follow_artifacts, check_server
from pipeline.tracking.stored_run import unusable
from stages.errors import UserError
from stages.features.drift import Drift
from stages.settings.table import TableSettings
from tests.pipeline.advice import Case
from tests.pipeline.experiments import compose, experiment, write_files, write_run

Told = tuple[UserError, str]
SEARCH = "sweep=tpe 'optimizer.learning_rate=interval(0.1,0.2)'"
WORKERS = "strategy=multi_worker cluster=hosts"
OWN_STAGE = "+pipeline.own=own '+own={_target_: tests.pipeline.decide.test_plan.without_settings, x: 3}'"


def refusal(call: Callable[..., Any], *arguments: Any) -> UserError:
    """Return the error that a call raises."""
    try:
        call(*arguments)
    except UserError as error:
        return error
    raise AssertionError(f"{call} refuses nothing")


def tried(folder: Path, status: str = "KILLED", **values: Any) -> Path:
    """Write a run, `abcdef12`, into the outputs in `folder`."""
    return write_run(folder / "outputs" / "runs" / "tried" / "20260101-000000-abcdef12", status, **values)


def _varied(folder: Path) -> Told:
    write_files(folder, {"mine/experiment/both.yaml": "# @package _global_\nsweep: {over: {seed: [1, 2]}}\n"})
    command = "--config-dir mine experiment=both"
    return refusal(api._composed, command.split()), command


def _group(folder: Path) -> str:
    write_files(folder, {"mine/optimizer/own.yaml": "_target_: tests.Own\n"})
    return "--config-dir mine optimizer=own"


def _same_name(folder: Path) -> str:
    write_files(folder, {"conf/data/digits.yaml": "{}\n"})
    return "--config-dir conf"


def _cache(folder: Path) -> Told:
    write_files(folder, {"outputs/cache/made/part": "x"})
    options = clean.main.parse_args(["--older-than=0"])
    return refusal(clean._clean, options), "python -m pipeline clean --older-than=0"


def _address_of_a_run(folder: Path) -> str:
    tried(folder, overrides=["tracking=server", "tracking.uri=http://127.0.0.1:9"])
    return "resume=abcdef12"


def _target_by_a_run(folder: Path) -> str:
    mine = "# @package _global_\nmodel: {network: {_target_: 'stages.networks.cnn.${tracking.tags.which}'}}\n"
    write_files(folder, {"mine/experiment/own.yaml": f"{mine}tracking: {{tags: {{which: cnn}}}}\n"})
    tried(folder, overrides=["tracking.tags.which=resnet"])
    return "--config-dir mine experiment=own fork=abcdef12"


def _another_index(_: Path) -> Told:
    settings = experiment("cluster=hosts", "cluster.hosts=['192.0.2.1:1','192.0.2.2:2']", "cluster.index=2").cluster
    command = f"{WORKERS} 'cluster.hosts=[192.0.2.1:1,192.0.2.2:2]' cluster.index=2"
    return refusal(Hosts(settings).task, experiment("strategy=multi_worker").settings["strategy"]), command


def _no_room(_: Path) -> Told:
    job: Any = SimpleNamespace(_total={"CPU": 4.0}, _settings=experiment("cluster=ray").cluster)
    return RayJob._no_room(job, {"CPU": 1.0}), "cluster=ray"


def _secret(_: Path) -> Told:
    words = ("cluster=slurm", "+cluster.options.token=abcdefgh12345678")
    return refusal(_refuse_secrets, Job(experiment(*words))), " ".join(words)


def _over(folder: Path) -> Told:
    tried(folder, "FINISHED")
    return refusal(_named_run, experiment("resume=abcdef12", "tracking=off"), ""), "resume=abcdef12"


def _debugged_fork(folder: Path) -> str:
    tried(folder)
    return "debug=fast fork=abcdef12"


def _first_of_a_run(folder: Path) -> str:
    tried(folder, "FINISHED")
    return "from=train run=abcdef12"


def _no_epochs(_: Path) -> Told:
    run = Summary("abcdef12", "FINISHED", "tried", Path("tried"), {}, metrics={"train/last_epoch": 5.0})
    given = experiment("train.epochs=5", "fork=abcdef12", "fork_weights=last")
    return refusal(refuse_without_epochs, given, run), "train.epochs=5"


def _claimed(folder: Path) -> Told:
    run = tried(folder, "FINISHED")

    def claim() -> None:
        with ExitStack() as held:
            held.enter_context(claimed(decide(Job(experiment(), RunFolder(run)))))

    return refusal(claim), ""


def _output(_: Path) -> Told:
    words = ["model", "table.csv", "--output=answers.txt"]
    return refusal(predict._predict, predict.main.parse_args(words)), f"python -m pipeline predict {' '.join(words)}"


def _other_data(_: Path) -> Told:
    runner: Any = SimpleNamespace(summary=SimpleNamespace(facts=Facts(fingerprint="a")))
    return refusal(StageRunner._refuse_other_data, runner, SimpleNamespace(fingerprint="b", name="digits")), ""


def _copied(folder: Path, uri: str) -> Path:
    """Write the journal of a run that somebody else recorded on the server at `uri`."""
    run = tried(folder)
    store = {"kind": "server", "uri": uri, "target": None, "run_id": "1f", "name": "a", "experiment": "e"}
    lines = [{"store": store}, {"call": "tags", "given": {"values": {"a": "b"}}}]
    (run / NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def _foreign_store(folder: Path) -> Told:
    run = _copied(folder, "http://192.0.2.1:9")
    return refusal(settings_for, run, TrackingSettings()), f"python -m pipeline sync {run}"


def _password(folder: Path) -> Told:
    run = _copied(folder, "http://192.0.2.1:9")
    error = refusal(sync._sync_locked, run, folder / "outputs", "http://me:***@192.0.2.1:9", True)
    return error, f"python -m pipeline sync {run}"


def _no_configuration(folder: Path) -> Told:
    run = tried(folder)
    return refusal(lambda: RunFolder(run).config), f"fork={run}"


def _another_value(_: Path) -> Told:
    [axis] = read_axes([parse("seed=1,2")], lambda lines: compose())
    return refusal(axis.line, "3"), "sweep=tpe seed=1,2"


def _searching(metric: str) -> Any:
    """Return the attributes of a search that optimizes `metric`."""
    axis: Axis = read_axes([parse("seed=1,2")], lambda lines: compose())[0]
    settings = SimpleNamespace(direction="maximize")
    return SimpleNamespace(goals=[Goal(metric, "maximize")], axes=[axis], settings=settings)


def _goal(_: Path) -> Told:
    run = Summary("abcdef12", "FINISHED", "tried", Path("tried"), {}, metrics={"val/best_loss": 1.0})
    error = refusal(refuse_goal, _searching("val/best_acc"), run, False)
    return error, "sweep=tpe seed=1,2 sweep.metric=val/best_acc"


def _other_examples(folder: Path) -> Told:
    first = SimpleNamespace(folder="first")
    trials: Any = SimpleNamespace(_plan=_searching("val/best_loss"), _folder=folder, jobs=[first])
    write_run(folder / "first", facts=Facts(val_examples="a"))
    run = Summary("abcdef12", "FINISHED", "tried", Path("tried"), {}, facts=Facts(val_examples="b"))
    return refusal(Trials._refuse_other_examples, trials, run, SimpleNamespace(number=2)), "sweep=tpe seed=1,2"


def _no_export(folder: Path) -> Told:
    tried(folder, "FINISHED")
    error = refusal(models.saved_model, "abcdef12", None, folder / "outputs")
    return error, "python -m pipeline serve abcdef12"


def _damaged_index(folder: Path) -> Told:
    return refusal(read_index, folder), "-m seed=1,2"


def _compared(folder: Path) -> Told:
    tried(folder)
    return refusal(select, read_all(folder / "outputs"), ["status>3"]), "python -m pipeline runs 'status>3'"


def _named(folder: Path) -> Told:
    tried(folder)
    return refusal(select, read_all(folder / "outputs"), ["nope"]), "python -m pipeline runs nope"


def _none(folder: Path) -> Told:
    return refusal(_runs, ["status=FINISHED"], folder / "outputs", print), "python -m pipeline compare status=FINISHED"


def _no_sweep(_: Path) -> Told:
    session: Any = SimpleNamespace(experiments=[experiment("resume=nope")], identity="x", kind="sweep", unit="job")
    return refusal(to_resume, session, print), "-m seed=1,2 resume=nope"


def _found(folder: Path) -> str:
    tried(folder, run_id="0123abcd")
    return "fork=abcd"


def _keras_file(folder: Path) -> Told:
    write_files(folder, {"keras/keras.json": "[]"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_HOME", str(folder / "keras"))
        return refusal(check_keras_file), ""


def _foreign_artifacts(folder: Path) -> Told:
    with closing(sqlite3.connect(file := folder / "mlflow.db")) as database, database:
        for table, column in LOCATIONS:
            database.execute(f"CREATE TABLE {table} (name, {column})")
        database.execute("INSERT INTO experiments VALUES ('e', 'http://192.0.2.1/x')")
    return refusal(_follow_artifacts, file, folder), "outputs=received"


def _no_server(_: Path) -> Told:
    words = ("tracking=server", "tracking.uri=http://127.0.0.1:9")
    return refusal(check_server, experiment(*words)), " ".join(words)


def _no_callbacks_folder(_: Path) -> Told:
    target = "keras.callbacks.CSVLogger"
    error = refusal(check_arguments, "train.callbacks[0]", target, {"filename": "no such/log.csv"})
    return error, f"'train.callbacks=[{{_target_: {target}, filename: no such/log.csv}}]'"


def _images(folder: Path) -> Told:
    options = predict.main.parse_args(["model", "image.png", "--output=answers.csv"])
    with pytest.MonkeyPatch.context() as patch:
        for module, names in (
            (models, ("saved_model", "load", "drift_of")),
            (signatures, ("suffixes_of", "accepts_columns", "images_among_columns")),
        ):
            for name in names:
                patch.setattr(module, name, lambda *_: ())
        return refusal(files.predict, options), "python -m pipeline predict model image.png --output=answers.csv"


def _table_into_a_folder(_: Path) -> Told:
    options = predict.main.parse_args(["model", "table.csv", "--output=answers"])
    given = None, TableSettings(files=["table.csv"]), options, Drift("{}")
    return refusal(files._predict_tables, *given), "python -m pipeline predict model table.csv --output=answers"


def _missing_member(_: Path) -> Told:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    task = Task("worker", 1, {"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]})
    command = f"{WORKERS} 'cluster.hosts=[127.0.0.1:1,127.0.0.1:2]'"
    return refusal(wait_for_members, task, 0.5, print), f"{command} cluster.index=1"


def _second_process(_: Path) -> Told:
    with closing(socket.create_server(("127.0.0.1", 0))) as chief:
        Thread(target=lambda: chief.accept()[0].send(TAKEN), daemon=True).start()
        address = f"127.0.0.1:{chief.getsockname()[1]}"
        task = Task("worker", 1, {"worker": [address, "127.0.0.1:1"]})
        error = refusal(next, _calls(task, "chief", address))
    command = f"{WORKERS} 'cluster.hosts=[127.0.0.1:1,127.0.0.1:2]'"
    return error, f"{command} cluster.index=1"


def _no_map(folder: Path) -> Told:
    np.savez(folder / "pixels.npz", x=np.zeros((9, 8, 8, 3), np.uint8), y=np.zeros((9, 8, 8), np.uint8))
    words = f"data=arrays data.files={folder}/pixels.npz task=segmentation model=cnn"
    return refusal(check_data, experiment(*words.split())), words


def _none_is_best(folder: Path) -> Told:
    jobs: Any = [SimpleNamespace(only_trains=True, folder="1_seed=1")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.sweep.sweep.compare", lambda _: SimpleNamespace(runs_to_take=[], rows=[1]))
        return refusal(jobs_to_finish, folder, jobs, "best"), "-m seed=1,2 sweep.finish=best"


def _dry(_: Path) -> Told:
    """Return the error of a dry run of a sweep, with `true` instead of its process, which would take a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", "true")
        return refusal(api.sweep, ["seed=1,2", "dry_run=true"]), "-m seed=1,2 dry_run=true"


CASES: dict[str, Case] = {
    "pipeline/api.py:_composed": _varied,
    "pipeline/runs/folder.py:summary": lambda folder: (refusal(lambda: RunFolder(folder).summary), ""),
    "pipeline/api.py:sweep": _dry,
    "pipeline/checks/callbacks.py:check_arguments": _no_callbacks_folder,
    "pipeline/checks/callbacks.py:check_callback": "'train.callbacks=[{_target_: keras.callbacks.BackupAndRestore}]'",
    "pipeline/checks/data_fits.py:_check_classes": "task=regression",
    "pipeline/checks/data_fits.py:_check_map": _no_map,
    "pipeline/checks/data_fits.py:check_data": "model=text_cnn",
    "pipeline/checks/registry.py:_monitor_is_known": "train.monitor=val_acuracy",
    "pipeline/checks/registry.py:check_rules": "model.weights=imagenet",
    "pipeline/checks/registry.py:check_surroundings": "outputs=/etc/passwd",
    "pipeline/command_line/arguments.py:_unknown_flag": "--epochs 5",
    "pipeline/command_line/arguments.py:error": "--cfg",
    "pipeline/command_line/arguments.py:refuse_unknown_verb": lambda _: (
        refusal(refuse_unknown_verb, ["compar", "--json"]), "python -m pipeline compar --json"
    ),
    "pipeline/command_line/compose.py:_absent": "tracking.options.x=3",
    "pipeline/command_line/compose.py:_refuse_alias": "train.optimizer.beta_1=0.8",
    "pipeline/command_line/compose.py:_refuse_other_targets": _target_by_a_run,
    "pipeline/command_line/compose.py:is_sweep": "sweep.n_jobs=2",
    "pipeline/command_line/overrides.py:__init__": "-m 'sweep.zip=[[seed,train.epochs]]' seed=1,2 train.epochs=1,2,3",
    "pipeline/command_line/overrides.py:__iter__": "-m 'sweep.exclude=[{seed: [1,2]}]' seed=1,2",
    "pipeline/command_line/overrides.py:_enumerated": "train.epochs=1,2",
    "pipeline/command_line/overrides.py:checked": "hydra.run.dir=x",
    "pipeline/command_line/overrides.py:parsed": "train.epochs:3",
    "pipeline/command_line/command.py:error": lambda _: (refusal(diff.main.parse_args, []), "python -m pipeline diff"),
    "pipeline/commands/clean.py:_clean": _cache,
    "pipeline/commands/predict.py:_predict": _output,
    "pipeline/commands/ui.py:_open": lambda _: (refusal(ui._open, ui.main.parse_args([])), "python -m pipeline ui"),
    "pipeline/config/cluster.py:check": "cluster=slurm cluster.minutes=1 cluster.signal_seconds=60",
    "pipeline/config/debug.py:_check": _debugged_fork,
    "pipeline/config/errors.py:explain": "'train.epochs=${nope}'",
    "pipeline/config/errors.py:unknown_key": "train.epoch=3",
    "pipeline/config/errors.py:unknown_option": "optimizer=adm",
    "pipeline/config/experiment.py:_refuse_without_schema": _group,
    "pipeline/config/experiment.py:_settings": "+pipeline.extra=x",
    "pipeline/config/names.py:options_folder": "--config-dir /nope",
    "pipeline/config/names.py:read_options": _same_name,
    "pipeline/config/schemas.py:check": "name=-",
    "pipeline/launch/joined.py:_calls": _second_process,
    "pipeline/launch/joined.py:task": _another_index,
    "pipeline/launch/joined.py:wait_for_members": _missing_member,
    "pipeline/launch/ray.py:_no_room": _no_room,
    "pipeline/launch/slurm.py:_refuse_secrets": _secret,
    "pipeline/paths.py:outputs_folder": "outputs=s3://bucket/runs",
    "pipeline/decide/resume.py:_named_run": _over,
    "pipeline/decide/reuse.py:plan_with": _first_of_a_run,
    "pipeline/decide/fork.py:refuse_without_epochs": _no_epochs,
    "pipeline/decide/inherited.py:_refuse_untyped": _address_of_a_run,
    "pipeline/runs/folder.py:claimed": _claimed,
    "pipeline/decide/plan.py:_refuse_settings_without_reader": OWN_STAGE,
    "pipeline/decide/plan.py:make_plan": "pipeline.train=null",
    "pipeline/execute/stages.py:_refuse_other_data": _other_data,
    "pipeline/tracking/pending.py:settings_for": _foreign_store,
    "pipeline/runs/finding.py:find": _found,
    "pipeline/runs/folder.py:config": _no_configuration,
    "pipeline/search/plan.py:_direction": f"{SEARCH} sweep.metric=val/best_liking",
    "pipeline/search/plan.py:_goals": f"{SEARCH} sweep.metric=test/accuracy",
    "pipeline/search/plan.py:check_axes": "sweep=tpe",
    "pipeline/search/plan.py:line": _another_value,
    "pipeline/search/plan.py:plan_search": "sweep=grid 'optimizer.learning_rate=interval(0.1,0.2)'",
    "pipeline/search/plan.py:read_axes": "sweep=tpe 'optimizer.learning_rate=interval(0.2,0.1)'",
    "pipeline/search/plan.py:refuse_debug": "sweep=tpe debug=fast seed=1,2",
    "pipeline/search/trials.py:refuse_goal": _goal,
    "pipeline/search/trials.py:_refuse_other_examples": _other_examples,
    "pipeline/serving/files.py:_refuse_folder": _table_into_a_folder,
    "pipeline/serving/files.py:predict": _images,
    "pipeline/serving/models.py:saved_model": _no_export,
    "pipeline/sweep/index.py:latest": lambda folder: (refusal(latest, folder), ""),
    "pipeline/sweep/index.py:read_index": _damaged_index,
    "pipeline/launch/slots.py:deal_out": "-m seed=1,2 cluster=slurm sweep.devices_per_job=1",
    "pipeline/sweep/grid.py:checked_jobs": "-m 'seed=range(1,200000)'",
    "pipeline/sweep/select.py:_filtered": _compared,
    "pipeline/sweep/select.py:_named": _named,
    "pipeline/sweep/select.py:_runs": _none,
    "pipeline/sweep/sweep.py:jobs_to_finish": _none_is_best,
    "pipeline/sweep/claim.py:to_resume": _no_sweep,
    "pipeline/sweep/sync.py:_sync_locked": _password,
    "pipeline/system/environment.py:check_keras_file": _keras_file,
    "pipeline/system/machine.py:free_port": lambda _: (
        refusal(free_port, 70000, 5000), "python -m pipeline ui --port=70000"
    ),
    "pipeline/tracking/store.py:_follow_artifacts": _foreign_artifacts,
    "pipeline/tracking/store.py:check_server": _no_server,
    "pipeline/tracking/stored_run.py:unusable": lambda _: (unusable(TrackingSettings(), "it is locked"), ""),
}  # fmt: skip

UNREACHED: dict[str, str] = {
    "pipeline/api.py:run_experiment": "needs a process that was forked after it had used TensorFlow",
    "pipeline/checks/callbacks.py:_check_package": "advises to install a package",
    "pipeline/command_line/completion.py:complete": "is evaluated by a shell that has the console script",
    "pipeline/launch/ray.py:_connect": "needs Ray, and seconds to find none at an address",
    "pipeline/launch/slurm.py:place_in_step": "needs Slurm",
    "pipeline/launch/slurm.py:task": "needs Slurm",
    "pipeline/provenance/source_digest.py:refuse_edited": "advises what to write in a notebook",
    "pipeline/execute/stages.py:own_record": "advises what to write in the stage's code",
    "pipeline/sweep/claim.py:claimed_sweep": "needs another process that ends the sweep at that moment",
    "pipeline/system/streams.py:no_room": "advises the same command again",
    "pipeline/targets.py:check_installed": "advises to install a package",
}
"""Places whose advice is not typed here, and why."""
