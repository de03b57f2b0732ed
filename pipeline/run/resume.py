"""Runs on disk: which one a command goes on with, and that no two processes work on one."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.experiment import Experiment
from pipeline.paths import default_outputs, shorter
from pipeline.redaction.mask import MASK
from pipeline.run.identity import WITHOUT_EFFECT, identity, relevant_settings, settings_of
from pipeline.run.origin import NAME as ORIGIN
from pipeline.run.rebuild import read_run
from pipeline.run.summary import NAME, Summary
from pipeline.run.trust import check_overrides, check_trust
from stages.errors import UserError

WHEN_ASKED = ("strategy", "fork", "fork_weights")
"""Settings that may change, besides, in a run that is continued by its id."""


SHORTEST_ID = 4


def last_of(experiment: Experiment, warn: Callable[[str], None]) -> Summary | None:
    """Returns the last run of this experiment.

    Args:
        warn: is told of files that are damaged.
    """
    mine = identity(experiment)
    for folder in reversed(_run_folders(experiment.outputs / "runs" / experiment.name, "*")):
        summary = read_run(folder, warn)
        if summary is not None and summary.identity == mine:
            return summary
    return None


def _run_folders(place: Path, pattern: str) -> list[Path]:
    """Returns the folders of runs below `place`, also of those whose summary is missing."""
    return sorted({path.parent for name in (NAME, ORIGIN) for path in place.glob(f"{pattern}/{name}")})


def begun_in(folder: Path, warn: Callable[[str], None] = lambda line: None) -> Summary | None:
    """Returns the run of `folder` where one was begun and has not finished; `warn` is told of damaged files."""
    summary = read_run(folder, warn)
    return None if summary is None or summary.status == "FINISHED" else summary


def has_finished(folder: Path) -> bool:
    """Returns whether there is a run in `folder` that is done."""
    summary = read_run(folder, _ignore)
    return summary is not None and summary.status == "FINISHED"


def find(text: str, outputs: Path, option: str) -> Summary:
    """Returns the run that a user means by its folder or the beginning of its id.

    Args:
        option: where it was given, `resume` or `fork`.

    Raises:
        UserError: where there is none, or several.
    """
    given = Path(text).expanduser()
    places = [given] if (given / NAME).is_file() or (given / ORIGIN).is_file() else []
    if not places and len(text) >= SHORTEST_ID:
        folders = [folder for pattern in ("runs/*/*", "sweeps/*/*") for folder in _run_folders(outputs, pattern)]
        places = [folder for folder in folders if folder.name == text or _has_id(folder, text)]
    damaged: list[str] = []
    found = [summary for place in places if (summary := read_run(place, damaged.append)) is not None]
    if not found and damaged:
        raise UserError(f"{option}={text}: {damaged[0]}", "a run whose files are whole", f"{option}=<run id>")
    if len(found) != 1:
        raise UserError(
            f"{option}={text} is {'no run' if not found else f'{len(found)} runs'} under {shorter(outputs)}",
            f"the folder of a run, or the beginning of its id ({SHORTEST_ID} digits or more)",
            f"{option}=<run id>",
        )
    return found[0]


def _has_id(folder: Path, text: str) -> bool:
    summary = read_run(folder, _ignore)
    return summary is not None and (summary.run_id or "").startswith(text)


def _ignore(line: str) -> None:
    """For readers of which another one tells the user what is damaged."""


def check_same(experiment: Experiment, run: Summary) -> None:
    """Raises UserError with the first setting in which `experiment` is not what the run was begun with."""
    path = Path(run.folder) / "config.yaml"
    if not path.is_file():
        return
    ignored = WITHOUT_EFFECT + WHEN_ASKED
    try:
        before = relevant_settings(OmegaConf.to_container(OmegaConf.load(path)), ignored)
    except (OSError, ValueError, AttributeError, yaml.YAMLError, OmegaConfBaseException) as error:
        if run.identity == identity(experiment):
            return
        raise UserError(
            f"resume={experiment.resume}: {shorter(path)} is damaged, so its settings cannot be compared with these",
            "the settings of the run, unchanged",
            f"fork={experiment.resume}",
        ) from error
    now = settings_of(experiment, ignored)
    for name in dict.fromkeys([*before, *now]):
        if str(before.get(name)) != str(now.get(name)):
            raise UserError(
                f"resume={experiment.resume}: {name} was {before.get(name)} and is {now.get(name)}",
                f"the settings of the run (its strategy may change), or a new run: fork={experiment.resume}",
                override(name, before.get(name)),
            )


def override(name: str, value: Any) -> str:
    """Returns what to type, so that the setting `name` is `value`."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return shlex.quote(f"{name}={text}")


def checkpoints_in(run: Summary) -> Path | None:
    """Returns the folder of a run's checkpoints, or None where it has none."""
    folder = Path(run.folder) / "checkpoints"
    return folder if any(folder.glob("*.npz")) else None


def with_overrides_of_run(arguments: list[str], config_dirs: Sequence[Path] = ()) -> list[str]:
    """Returns a command line with the overrides of the run that it resumes or forks, where it does not give its own.

    The run is quoted: 4e123456 would be a number.

    Raises:
        UserError: where there is no such run, it would run code that the configuration does not name, or a setting must
            be given again because its secret was not kept.
    """
    given = {_key(one): one.partition("=")[2].strip("'\"") for one in arguments if not one.startswith("-")}
    several = "-m" in arguments or "--multirun" in arguments
    quoted, more = list(arguments), []
    for option in ("resume", "fork"):
        wanted = given.get(option, "auto")
        if wanted in ("auto", "never", "null") or (several and "," in wanted):
            continue
        quoted = [f"{option}='{wanted}'" if _key(one) == option else one for one in quoted]
        if not several or option == "fork":
            outputs = Path(given["outputs"]).expanduser() if "outputs" in given else default_outputs()
            run = find(wanted, outputs, option)
            kept = [one for one in run.overrides if _key(one) not in {*given, "trust"}]
            _refuse_forgotten(kept, f"{option}={wanted}", given)
            more = [one for one in kept if MASK not in one]
            check_overrides(run, more, f"{option}={wanted}")
            if given.get("trust", "").lower() not in ("true", "yes", "on", "1"):
                check_trust(run, more, outputs, config_dirs, f"{option}={wanted}")
    return quoted + more


def _refuse_forgotten(overrides: list[str], option: str, given: Mapping[str, str]) -> None:
    """Raises UserError where a secret of an override was not kept, unless it is a tag or its group is given again."""
    missing = [_key(one) for one in overrides if MASK in one]
    missing = [key for key in missing if key.partition(".")[0] not in {"tags", *given}]
    if missing:
        raise UserError(
            f"{option} was given {', '.join(missing)} with a secret in it, which is not kept",
            "the setting once more",
            f"{option} {' '.join(f'{key}=<as before>' for key in missing)}",
        )


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition("@")[0]
