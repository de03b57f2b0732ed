"""Jobs of a sweep before it begins: what is the same twice is refused."""

from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.console import Console
from pipeline.provenance.identity import identity, settings_of
from pipeline.sweep.jobs import SweepJob, checked
from stages.errors import UserError
from tests.pipeline.experiments import experiment


def jobs(outputs: Path, *words: str) -> list[SweepJob]:
    composer = Composer(read_arguments(["-m", *words, "tracking=off", f"outputs={outputs}"]))
    return checked(composer.jobs(), composer.count(), Console())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("seed=1,1",), "jobs 1 and 2 have the same settings (seed=1"),
        (("seed=1,2", "optimizer.learning_rate=0.1,1e-1"), "jobs 1 and 2 have the same settings"),
        (("seed=42,43", "train.epochs=5,05"), "jobs 1 and 2 have the same settings"),
        (("seed=1,2", "evaluate.against=nope"), "evaluate.against=nope"),
        (("name=a,b",), "jobs 1 and 2 have the same settings (name=b"),
    ],
)
def test_jobs_that_tell_nothing_new_are_refused(words: tuple[str, ...], said: str, outputs: Path) -> None:
    with pytest.raises(UserError) as refused:
        jobs(outputs, *words)
    assert said in str(refused.value)


@pytest.mark.parametrize("values", [(0.1, 0.9), (4, 8), ("mean", "max")], ids=str)
def test_settings_that_are_named_like_secrets_tell_jobs_apart(values: tuple[object, object]) -> None:
    """Text is masked in records, and counts for the identity all the same; a credential never does."""
    own = "+extra={_target_: own.stage, %s: %s}"
    first, second = (experiment("+pipeline.extra=report", own % ("keep_token", value)) for value in values)
    assert identity(first) != identity(second)
    assert (settings_of(first) == settings_of(second)) == isinstance(values[0], str)
    first, second = (experiment("+pipeline.extra=report", own % ("api_token", value)) for value in values)
    assert identity(first) == identity(second)
