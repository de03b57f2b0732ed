"""Forks whose settings do not fit the weights of the other run, by its `config.yaml`: refused before they start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.provenance.identity import relevant_settings, settings_of
from pipeline.run_folder.summary import Summary
from stages.errors import UserError

_OF_DATA = ("data._target_", "data.name")
_OF_SPLITS = ("data.split_seed", "data.val_fraction", "data.test_fraction")
_CUT = ("stages.load.digits.digits", "stages.load.synthetic.synthetic")
"""Sources whose splits always are cut by these."""

_WITHOUT_VARIABLES = ("model.network.dropout", "model.network.arguments")
"""Settings of networks with which the variables may be the same."""


def check_fork(experiment: Experiment, run: Summary) -> None:
    """Raises UserError for a setting with which `experiment` has other data or variables than the run it forks.

    What only the data and the network themselves can tell is compared when they are there.
    """
    try:
        before = relevant_settings(OmegaConf.to_container(OmegaConf.load(Path(run.folder) / "config.yaml")), ())
    except Exception:  # damaged: the checkpoint is compared when it is restored
        return
    now = settings_of(experiment, ())
    for name in _decisive(before, now):
        if str(before.get(name)) != str(now.get(name)):
            _refuse(experiment, name, before.get(name), now.get(name))
    dtypes = [_variables(settings) for settings in (before, now)]
    if dtypes[0] != dtypes[1]:
        name = "precision.policy"
        _refuse(experiment, name, before.get(name), now.get(name))


def _decisive(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the settings that cannot differ."""
    names = list(_OF_DATA)
    if before.get("data._target_") in _CUT:
        names += _OF_SPLITS
    target = "model.network._target_"
    if all(str(settings.get(target)).startswith("stages.networks.") for settings in (before, now)):
        names += [target, *(name for name in now if name.startswith("model.network."))]
    return [name for name in dict.fromkeys(names) if not name.startswith(_WITHOUT_VARIABLES)]


def _variables(settings: Mapping[str, Any]) -> str:
    """Returns the dtype of the variables."""
    policy = str(settings.get("precision.policy"))
    return policy if policy in ("bfloat16", "float16", "float64") else "float32"


def _refuse(experiment: Experiment, name: str, before: Any, now: Any) -> None:
    raise UserError(
        f"fork={experiment.fork}: {name} was {before} and is {now}, with which its weights do not fit",
        "the data, the network and the dtype of the variables of that run; a new run from scratch may have others",
        "fork=null",
    )
