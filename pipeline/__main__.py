"""`python -m pipeline`: composes the configuration, then runs one job, or with -m a sweep of them."""

import os
import sys
import traceback
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline import environment, runs
from pipeline.config import added_config_dirs, read, register_schemas
from pipeline.console import Console
from pipeline.help import HELP
from pipeline.job import FAILED, WRONG_CONFIGURATION, Job
from pipeline.keys import existing_keys
from pipeline.launch import run_job
from pipeline.messages import explain
from pipeline.paths import CONF
from pipeline.secrets import redact
from pipeline.signals import ignore_from_now_on
from stages.errors import UserError


def run(document: DictConfig) -> None:
    """Hydra's task function. Ends the process with the job's exit code."""
    chosen = HydraConfig.get()
    try:
        experiment = read(document, dict(chosen.runtime.choices), added_config_dirs(chosen.runtime))
        code = run_job(Job(experiment, tuple(chosen.overrides.task)), Console())
        ignore_from_now_on()
    except UserError as error:
        _refuse(error)
    except Exception:  # Hydra would print the overrides, secrets and all
        print(redact(traceback.format_exc()), file=sys.stderr)
        code = FAILED
    sys.exit(code)


def main() -> None:
    """The command: ends the process with the contract's exit code."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(HELP, end="")
        return
    environment.prepare()
    register_schemas()
    sys.argv[1:] = _flags_first(sys.argv[1:])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises what it would print, and the exit code is ours
    try:
        sys.argv[1:] = runs.with_overrides_of_run(sys.argv[1:])
        hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(run)()
    except KeyboardInterrupt:  # before a run has begun; later it is marked KILLED
        sys.exit(130)
    except UserError as error:
        _refuse(error)
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(explain(error, existing_keys(sys.argv[1:])))
    except ValueError as error:
        if not str(error).startswith("Config group override"):
            raise
        _refuse(UserError("a group is given null", "one of its options", "python -m pipeline --help"))


def _flags_first(arguments: list[str]) -> list[str]:
    """Returns `arguments` with -m at the front: Hydra's parser takes no override on both sides of a flag."""
    flags = [argument for argument in arguments if argument in ("-m", "--multirun")]
    return flags[:1] + [argument for argument in arguments if argument not in flags]


def _refuse(error: UserError) -> NoReturn:
    print(f"error: {redact(str(error))}", file=sys.stderr)
    sys.exit(WRONG_CONFIGURATION)


if __name__ == "__main__":
    main()
