"""Names that other projects have for settings and options, and what to type here instead."""

import re
import shlex
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path

_NAMES: Mapping[str, str] = {
    "lr learning_rate base_lr max_lr peak_lr init_lr initial_lr initial_learning_rate": "optimizer.learning_rate={}",
    "epochs max_epochs num_epochs n_epochs nb_epoch nb_epochs num_train_epochs total_epochs": "train.epochs={}",
    "batch_size bs batchsize train_batch_size global_batch_size per_device_train_batch_size": "train.batch_size={}",
    "eval_batch_size test_batch_size val_batch_size per_device_eval_batch_size": "evaluate.batch_size={}",
    "gpus gpu devices num_gpus n_gpu n_gpus ngpus accelerator distribute distributed multi_gpu num_devices backend "
    "distributed_backend": "strategy=mirrored",
    "num_nodes world_size nnodes nproc_per_node num_processes n_procs": "strategy=multi_worker strategy.workers={}",
    "ckpt_path checkpoint ckpt resume_from resume_from_checkpoint checkpoint_path restore_from load_checkpoint "
    "initial_epoch": "resume=<run>",
    "pretrained pretrained_weights init_weights init_checkpoint load_weights load_from": "model.weights=<a file>",
    "logger loggers wandb tensorboard report_to mlflow use_wandb mlflow_uri tracking_uri": "tracking=local",
    "callbacks": "'train.callbacks=[{{_target_: keras.callbacks.TerminateOnNaN}}]'",
    "early_stopping patience es_patience early_stop early_stopping_patience early_stopping_rounds": (
        "train.early_stopping_patience={}"
    ),
    "seed_everything random_state random_seed manual_seed rng_seed": "seed={}",
    "data_dir data_path data_root dataset_dir dataset_path train_dir image_dir": "data=image_folder data.dir={}",
    "dataset dataset_name datamodule dataloader": "data={}",
    "arch architecture backbone network net model_name": "model={}",
    "opt optim optimizer_name": "optimizer={}",
    "scheduler lr_scheduler lr_schedule lr_scheduler_type": "schedule=cosine",
    "warmup warmup_epochs num_warmup_epochs": "schedule.warmup_epochs={}",
    "weight_decay wd l2": "optimizer.weight_decay={}",
    "momentum": "optimizer=sgd optimizer.momentum={}",
    "gradient_clip_val max_grad_norm clip_grad grad_clip clipnorm global_clipnorm clip_norm clip_grad_norm "
    "gradient_clip": "optimizer.clip_norm={}",
    "accumulate_grad_batches gradient_accumulation_steps grad_accum accumulation_steps accumulation "
    "grad_accum_steps": "optimizer.accumulation={}",
    "ema ema_decay ema_momentum use_ema": "optimizer.ema_momentum=0.99",
    "fp16 amp mixed_precision use_amp half autocast": "precision=mixed",
    "bf16": "precision=mixed_bfloat16",
    "dtype dtype_policy": "precision=mixed",
    "compile jit jit_compile xla torch_compile use_xla": "train.jit=on",
    "img_size image_size input_size resolution imgsz": "data.size={}",
    "val_split validation_split val_size val_fraction": "data.val_fraction={}",
    "test_split test_size test_fraction": "data.test_fraction={}",
    "steps_per_execution": "train.steps_per_call={}",
    "class_weight": "train.class_weights=balanced",
    "output_dir out_dir save_dir log_dir logdir results_dir work_dir default_root_dir dirpath output": "outputs={}",
    "run_name experiment_name exp_name project": "name={}",
    "monitor": "train.monitor={}",
    "n_trials num_trials": "sweep=tpe sweep.trials={}",
    "n_jobs": "sweep.n_jobs={}",
    "fast_dev_run smoke_test dry_run_epoch": "debug=fast",
    "overfit_batches": "debug=overfit",
    "profiler profile": "debug=profile",
    "deterministic_algorithms cudnn_deterministic benchmark": "deterministic=true",
    "num_workers workers num_data_workers n_workers dataloader_num_workers pin_memory prefetch persistent_workers": "",
}
"""From names to what has their effect here, the typed value in braces; empty: it needs no setting."""

_BY_NAME = {name: fix for names, fix in _NAMES.items() for name in names.split()}

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "strategy": {
        "ddp dp fsdp deepspeed horovod ddp_spawn mirroredstrategy multi_gpu data_parallel gpu": "mirrored",
        "multiworker multiworkermirrored multiworkermirroredstrategy ddp_multi_node": "multi_worker",
        "ps parameterserver parameterserverstrategy": "parameter_server",
        "auto none null single single_device cpu onedevice onedevicestrategy": "one_device",
        "tensor_parallel pipeline_parallel tp pp modelparallel": "model_parallel",
        "tpustrategy xla": "tpu",
        "centralstorage centralstoragestrategy": "central_storage",
    },
    "precision": {
        "16 fp16 half 16_mixed amp f16 16_true": "mixed_float16",
        "bf16 bf16_mixed bf16_true": "mixed_bfloat16",
        "32 fp32 full 32_true f32 single": "float32",
        "64 fp64 double 64_true f64": "float64",
    },
    "tracking": {"mlflow sqlite true on wandb tensorboard csv neptune comet clearml aim": "local", "none false": "off"},
    "schedule": {
        "none null fixed": "constant",
        "cosineannealing cosineannealinglr cosine_decay cosinedecay onecycle one_cycle linear": "cosine",
        "multistep multisteplr steplr exponential piecewise": "step",
        "reducelronplateau reduce_on_plateau reduce_lr_on_plateau": "plateau",
    },
    "train": {"keras model_fit lightning": "fit", "custom trainer": "loop"},
    "cluster": {"k8s kubernetes tfjob kubeflow": "tf_config", "none": "local"},
    "augment": {"autoaugment randaugment mixup cutmix trivialaugment": "strong", "basic default": "flip"},
    "normalize": {
        "minmax min_max scale": "rescale",
        "zscore mean_std": "standardize",
        "pretrained": "imagenet",
    },
    "export": {"tflite lite": "litert", "h5 hdf5": "keras", "savedmodel tf": "saved_model"},
    "sweep": {"optuna bayes bayesian hyperopt ax": "tpe", "cma": "cmaes", "multirun": "none"},
    "debug": {"true smoke": "fast", "false": "none"},
}
"""For each group, from names of options elsewhere to those here; without regard to case and dashes."""


def named_elsewhere(name: str, value: str) -> str | None:
    """Returns what to type instead of a setting that another project has, with the value as it was typed.

    Empty where this project needs no such setting, None where the name is not known.
    """
    fix = _BY_NAME.get(re.split(r"[./:]", name)[-1].lower().replace("-", "_"))
    return fix and fix.format(shlex.quote(value) if value else "…")


def _option_named(group: str, option: str) -> str:
    plain = option.lower().replace("-", "_").replace(" ", "_")
    return next((here for names, here in _OPTIONS.get(group, {}).items() if plain in names.split()), "")


def option_elsewhere(group: str, option: str, options: Collection[str]) -> str:
    """Returns what to type instead of an option that other projects have; empty where none is known."""
    if (here := _option_named(group, option)) in options:
        return f"{group}={here}"
    if group == "optimizer" and (name := _keras_name("optimizers", option)):
        return f"optimizer=custom optimizer._target_=keras.optimizers.{name}"
    if group == "schedule" and (name := _keras_name("optimizers/schedules", option)):
        return f"schedule=custom schedule._target_=keras.optimizers.schedules.{name}"
    if group == "model" and (name := _keras_name("applications", option)):
        return f"model=application model.network.name={name}"
    return ""


def _keras_name(package: str, option: str) -> str:
    """Returns the class of Keras that `option` means, such as `RMSprop`, by the names that the package lists."""
    spec = find_spec("keras")
    folder = Path((spec.submodule_search_locations or ["."])[0]) if spec else Path()
    listing = folder / package / "__init__.py"
    names = re.findall(r"(\w+) as \1", listing.read_text()) if listing.is_file() else []
    plain = re.sub(r"[\W_]", "", option).lower()
    return next((name for name in names if name.lower() == plain and not name.islower()), "")
