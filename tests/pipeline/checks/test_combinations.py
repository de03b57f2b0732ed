"""Impossible combinations and settings without effect are refused before TensorFlow is imported; others get a hint."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.checks.combinations import advice
from pipeline.checks.conditions import expected_replicas
from pipeline.config.debug import debugged
from pipeline.launch.local import enter_cluster, local_tasks
from pipeline.system import machine
from stages.settings.strategy import ParameterServerSettings
from tests.pipeline.experiments import Patch, assert_refused, command_error, experiment

REFUSED: Mapping[str, str] = {
    "cluster=tf_config": "cluster=tf_config with strategy=one_device without workers",
    "train=fit strategy=multi_worker": r"keras/issues/20585.*Try: train=loop",
    "train=fit strategy=parameter_server": "only works on one device and on mirrored replicas",
    "train=fit strategy=central_storage": "keras/issues/21054", "train=fit strategy=tpu": "keras/issues/19448",
    "train=fit optimizer.accumulation=2": "train=fit with optimizer.accumulation=2",
    "train=fit strategy=mirrored optimizer.clip_norm=1": "clips gradients before it sums them",
    "train=fit strategy=mirrored precision=mixed_float16": "checks for float16 overflow before it sums",
    "train=fit precision=float16 optimizer=sgd": "only scales the loss in mixed precision",
    "train=fit strategy=mirrored train.jit=on": "compiled code cannot access",
    "train=fit strategy=mirrored train.batch_size=63": "wrong if their batches differ in size",
    "strategy=model_parallel train.jit=on": "XLA compiles for a single device",
    "precision=float16 optimizer=sgd optimizer.ema_momentum=0.9": "stops changing",
    "strategy=parameter_server deterministic=true": "the workers' steps have no fixed order",
    "strategy=multi_worker precision=bfloat16 optimizer=sgd": "collectives cannot send bfloat16",
    "strategy=multi_worker strategy.workers=4 train.batch_size=3": "is too small for 4 replicas",
    "strategy=tpu precision=float64": "precision=float64 with strategy=tpu",
    "train=fit strategy=mirrored": "cannot share equally",
    "strategy=tpu strategy.name=local": "without a TPU in this machine or a TPU name is not supported: it req",
    "optimizer.ema_use=true": r"requires an EMA, but optimizer.ema_momentum is 0\. Try: optimizer.ema_momentum=0.99",
    "schedule=plateau schedule.warmup_epochs=1": "schedule=plateau has no warm-up",
    "train.class_weights=heavy": "train.class_weights=heavy is not valid",
    "train=fit augment=flip augment.where=model": r"Keras' fit runs its own training steps.*Try: augment.where=input",
    "strategy=parameter_server augment=flip augment.where=model": "cannot pass on random numbers",
    "strategy=tpu train.jit=auto augment=flip augment.where=model": "XLA cannot resample images",
    "augment=strong augment.where=model": r"need images of all replicas.*Try: augment.where=input",
    "precision=bfloat16": r"beta_2=0.999 is rounded to 1.*Try: precision=mixed_bfloat16",
    "task=regression task.single_logit=true": "single_logit",
    "precision=float16 optimizer=adamw": "squares of small gradients to 0",
    "debug.kind=fast": "cannot be set directly: the option of debug sets it. Expected none. Try: debug=<option>",
    "strategy=parameter_server model=mobilenet_v2 model.frozen=true train.fine_tune_epochs=2": "of a single optimizer",
    "strategy=model_parallel model=mobilenet_v2 model.frozen=true": "a backbone is a single layer",
    "model.frozen=true train.fine_tune_epochs=2 schedule.warmup_epochs=2": "no epoch of train.fine_tune_epochs=2",
    "model.frozen=true": "model.frozen=true without a backbone .* no layer named backbone.*Try: model.frozen=false",
    "model=mlp model.weights=imagenet": "model.weights=imagenet without a backbone.*Try: model.weights=none",
    "train.fine_tune_epochs=2": "train.fine_tune_epochs=2 with model.frozen=false.*Try: model.frozen=true",
    "strategy=central_storage strategy.parameter_device=nonsense": "parameter_device=nonsense is not valid",
    "train.callbacks=[{_target_:keras.optimizers.Adam}]": "keras.optimizers.Adam is not a Keras callback",
    "train.callbacks=[{_target_:keras.callbacks.BackupAndRestore,backup_dir:x}]": "would restore old weights",
    "model.weights=nowhere.h5": r"nowhere.h5 is not a file or folder with weights\. Expected none, imagenet, a file",
    "model.weights=docs": "model.weights=docs is not a file or folder with weights",
    "model.weights=README.md": "README.md is not a file or",
    "model.weights=runs:/abc tracking=off": "such weights are looked up in MLflow",
    "schedule=step train.epochs=10": r"decay_epochs=\[15,25\] never takes effect.*Try: schedule.decay_epochs=\[5\]",
    "cluster.restarts=1": "with cluster=local without workers",
    "strategy=mirrored strategy.cpu_replicas=2 strategy.devices=[/cpu:0]": "with strategy.devices",
    "train.fine_tune_layers=3": "train.fine_tune_epochs=0", "augment.magnitude=0.5": "augment.rand_augment=0",
    "train=fit model=mobilenet_v2 model.frozen=true train.cache_features=off": "with train=fit",
    "augment=none augment.where=input": r"where has no effect without image augmentation\. Try: augment=flip",
    "precision=float64 precision.tf32=true": r"tf32 has no effect with precision=float64\. Try: precision=float32",
    "tracking=off tracking.note=hello": r"tracking\.note has no effect with tracking=off\. Try: tracking=local",
    "tracking.uri=http://127.0.0.1:9": r"tracking\.uri has no effect with tracking=local\. Try: tracking=server",
    "cluster=tf_config strategy=multi_worker strategy.workers=3":
        r"strategy\.workers has no effect with cluster=tf_config\. Try: cluster=local",
    "export.promote_if=higher": r"promote_if has no effect with export\.alias=null\. Try: export\.alias=champion",
    "optimizer=custom": r"the import path of an optimizer.*Try: 'optimizer\._target_=keras\.optimizers\.Lion",
    "optimizer=custom optimizer._target_=keras.optimizers.Lino": "has no attribute .Lino",
    "schedule=custom": r"the import path of a schedule.*Try: 'schedule\._target_=",
    "schedule=custom schedule._target_=keras.optimizers.schedules.CosineDecay +schedule.arguments.alfa=1":
        r"schedule\.arguments: .*'alfa'\. .*alpha",
    "+export.formats.b={_target_:stages.exporters.litert.LiteRT,weights:int4}": "b.*weights=int4 is not supported",
    "+export.formats.b={_target_:stages.exporters.litert.LiteRT,wieghts:int8}": "formats.b.*wieghts",
    "+export.formats.b={_target_:keras.layers.Dense,units:3}": "keras.layers.Dense is not an exporter",
    "+export.formats.b={_target_:stages.exporters.no_such.Exporter}": "No module named 'stages.exporters.no_such'",
    "+export.formats.mine=3": "does not name an exporter",
    "export.reload=there": "export.reload=there is not supported",
    "export=litert export.formats.litert_int8.least_agreement=2": "is out of range",
    "export.register=digits tracking=off": "with tracking=off is not supported: registering",
    "export.register=a/b": "export.register=a/b is not valid. Expected at most 200 letters",
    "export=keras export.register=digits": "without a SavedModel",
    "export.alias=champion": "export.alias=champion with export.register=null",
    "export.register=digits export.alias=v1": "export.alias=v1 is not valid. Expected letters",
    "export.register=digits export.alias=champion evaluate.predictions=false": "promote_if=better without predictions",
    "train.monitor=val_acc": "train.monitor=val_acc is not a known metric",
    "task.loss.delta=2": "task.loss=.* does not name a function or class",
    "task.metrics=[mape]": r"task.metrics=mape does not name a function or class",
    "task.loss._target_=keras.losses.Hubert": "keras.losses.Hubert cannot be imported",
    "task.loss._target_=keras.losses.Huber task.loss.deltas=2": "task.loss: keras.losses.Huber: got an .*'deltas'",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("given", REFUSED)
def test_impossible_combinations_are_refused(given: str) -> None:
    assert_refused(["dry_run=true", *given.split()], REFUSED[given])


@pytest.mark.slow
def test_a_method_of_resizing_without_a_size_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    words = ["data=image_folder", f"data.dir={tmp_path}", "data.size=null", "data.resize=crop", "dry_run=true"]
    assert_refused(words, r"data\.resize has no effect with data\.size=null\. Try: data\.size=160")


ALLOWED = (
    "strategy=central_storage precision=mixed_float16",
    "strategy=parameter_server precision=float16 optimizer=sgd optimizer.clip_norm=1",
    "strategy=multi_worker deterministic=true optimizer.accumulation=2 train.jit=on",
    "strategy=mirrored train=fit strategy.cpu_replicas=4 data=synthetic data.examples=1280 data.val_fraction=0.2",
    "strategy=parameter_server train.batch_size=1 strategy.workers=8",
    "strategy=parameter_server augment=strong",
    "train.callbacks=[{_target_:keras.callbacks.TerminateOnNaN},{_target_:keras.callbacks.CSVLogger,filename:x}]",
    "strategy=central_storage strategy.parameter_device=/device:CPU:0",
    "augment=strong augment.where=model augment.mixup=0 augment.cutmix=0 strategy=multi_worker",
    "augment.mixup=0.2 augment.where=input",
    "strategy=multi_worker model=mobilenet_v2 model.frozen=true train.fine_tune_epochs=2 model.weights=runs:/abc",
    "train=fit model=mobilenet_v2 model.frozen=true model.weights=imagenet augment=strong augment.where=input",
    "schedule=cosine schedule.warmup_epochs=1 schedule.final_share=0.1 train.epochs=9",
    "optimizer=custom optimizer._target_=keras.optimizers.Lion optimizer.learning_rate=1e-3",
)


@pytest.mark.slow
@pytest.mark.parametrize("given", ALLOWED)
def test_possible_combinations_are_accepted(given: str) -> None:
    assert command_error([*given.split(), "dry_run=true"]) is None


def test_a_debug_run_may_end_before_the_learning_rate_decays() -> None:
    debugged(experiment("schedule=step", "debug=fast"))


@pytest.mark.parametrize(
    ("given", "flags", "line"),
    [("precision=mixed_float16", "avx2", "mixed_float16 is not faster than float32 on this CPU"),
     ("precision=bfloat16", "avx2", "lacks the instructions for it"), ("precision=mixed", "avx512_bf16", ""),
     ("precision=float16", "avx512_fp16", ""), ("precision=float64", "avx2", "")],
)  # fmt: skip
def test_a_precision_that_is_not_faster_gets_a_hint(given: str, flags: str, line: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({flags}))
    hint = " ".join(advice(experiment(given)))
    assert line in hint
    assert bool(line) == bool(hint)


def test_replicas_are_known_before_tensorflow(monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())
    known = {
        "strategy=default": 1, "strategy=mirrored strategy.cpu_replicas=3": 3, "strategy=model_parallel": 1,
        "strategy=central_storage": 2, "strategy=multi_worker strategy.workers=3": 3, "strategy=parameter_server": 1,
        "strategy=mirrored strategy.devices=[/cpu:0,/cpu:1,/cpu:2]": 3,
    }  # fmt: skip
    assert {given: expected_replicas(experiment(*given.split())) for given in known} == known


@pytest.mark.parametrize(("given", "first", "second"), [("", "0,1", "2,3"), ("2,3,6,7", "2,3", "6,7")])
def test_gpus_are_divided_among_local_workers(given: str, first: str, second: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: tuple(machine.Gpu("A100", (8, 0)) for _ in range(4)))
    seen = {}
    for task in local_tasks(ParameterServerSettings(deterministic=False, workers=2, servers=1).members()):
        monkeypatch.setenv("TF_CONFIG", "")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        enter_cluster(task)
        seen[task.name] = os.environ["CUDA_VISIBLE_DEVICES"]
    assert seen == {"chief-0": "-1", "worker-0": first, "worker-1": second, "server-0": "-1"}
