"""Advice of the command line, the configuration, sweeps, searches and the other commands."""

from tests.pipeline.advice import Case

CASES: dict[str, Case] = {
    "pipeline/checks/data_fits.py:_check_classes": "task=regression",
    "pipeline/checks/registry.py:_monitor_is_known": "train.monitor=val_acuracy",
    "pipeline/checks/registry.py:check_rules": "model.weights=imagenet",
    "pipeline/checks/registry.py:check_surroundings": "outputs=/etc/passwd",
    "pipeline/command_line/arguments.py:_unknown_flag": "--epochs 5",
    "pipeline/command_line/arguments.py:error": "--cfg",
    "pipeline/command_line/compose.py:_apply": "tracking.options.x=3",
    "pipeline/command_line/compose.py:_refuse_alias": "train.optimizer.beta_1=0.8",
    "pipeline/command_line/compose.py:is_sweep": "sweep.n_jobs=2",
    "pipeline/command_line/overrides.py:__init__": "-m 'sweep.zip=[[seed,train.epochs]]' seed=1,2 train.epochs=1,2,3",
    "pipeline/command_line/overrides.py:__iter__": "-m 'sweep.exclude=[{seed: [1,2]}]' seed=1,2",
    "pipeline/command_line/overrides.py:_check_values": "train.epochs=1,2",
    "pipeline/command_line/overrides.py:checked": "hydra.run.dir=x",
    "pipeline/command_line/overrides.py:parsed": "train.epochs:3",
    "pipeline/config/errors.py:unknown_key": "train.epoch=3",
    "pipeline/config/errors.py:unknown_option": "optimizer=adm",
    "pipeline/config/experiment.py:_settings": "+pipeline.extra=x",
    "pipeline/config/names.py:options_folder": "--config-dir /nope",
    "pipeline/config/schemas.py:check": "name=-",
    "pipeline/planning/plan.py:make_plan": "pipeline.train=null",
    "pipeline/run_folder/runs.py:find": "from=evaluate run=abcd",
}
