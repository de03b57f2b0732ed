"""The run that `evaluate.against` names: found before work begins."""

from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.run_folder.finding import find_run
from stages.settings.results import EvaluateSettings

SETTING = "evaluate.against"


def other_run(experiment: Experiment) -> Path | None:
    """Returns the folder of the run that this one is compared with; None where there is none.

    Raises:
        UserError: where there is no such run, or it has no predictions.
    """
    settings = experiment.settings.get("evaluate")
    if not isinstance(settings, EvaluateSettings) or settings.against is None:
        return None
    from stages.evaluation.against import check_other  # needs pyarrow, part of a second

    folder = Path(find_run(settings.against, experiment.outputs, SETTING).folder)
    check_other(folder, settings.against)
    return folder
