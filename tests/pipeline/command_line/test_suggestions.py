"""What an error says to type, typed after the same command, passes the check that raised it."""

import re
import shlex

import pytest

from pipeline.config.errors import explain
from pipeline.planning.earlier import prepare
from stages.errors import UserError
from tests.pipeline.checks.test_combinations import REFUSED
from tests.pipeline.config.test_config import WRONG
from tests.pipeline.experiments import experiment

pytestmark = pytest.mark.slow

MORE = (
    "train.epochs=0", "data.val_fraction=0", "augment.rotation=7", "optimizer.epsilon=0", "schedule.final_share=2",
    "schedule=step schedule.decay_epochs=[0]", "model.network.filters=[0]", "inspect.batch_size=0",
    "data.split_seed=-1",
    "strategy=mirrored strategy.cpu_replicas=65", "strategy.device=cpu", "strategy=mirrored strategy.devices=[x]",
    "name=" + "x" * 300, "name=-", "+tracking.tags.a@b=1", "data=synthetic data.examples=11 data.num_classes=16",
    "data=synthetic data.val_fraction=0.001", "train.epochs=1 schedule.warmup_epochs=1",
    "data=image_folder data.dir=. data.size=x",
    "data=image_folder data.dir=. data.channels=2", "train=fit strategy=mirrored", "train.callbacks=[3]",
    "train=fit strategy=mirrored train.batch_size=63", "tracking=server tracking.uri=http://[::1",
    "train.class_weights=[]",
    "+pipeline.extra=x", "precision.policy=x", "outputs=~nobody_at_all/x", "strategy=mirrored strategy.cpu_replicas=0",
    "tracking=server tracking.uri=http://127.0.0.1:9 dry_run=false", "seed=99999999999", "optimizer.learning_rate=1e39",
    "augment.mixup=0.2 ~pipeline.augment +pipeline.augment=dataset",
)  # fmt: skip

PLACEHOLDER = re.compile(r"<[^>]+>|…")


def refused(overrides: list[str]) -> UserError | None:
    """Returns the error that these overrides end in, as the command would show it."""
    try:
        prepare(experiment(*overrides))
    except UserError as error:
        return error
    except Exception as error:
        return explain(error)
    return None


def kind(error: UserError) -> str:
    """Returns what an error complains of, without the values."""
    return re.sub(r"[\d.]+|=\S*", "", error.problem)[:60]


CASES = [case for case in (*REFUSED, *WRONG, *MORE) if not case.startswith(("-", "train.epochs=1 -m"))]


@pytest.mark.parametrize("given", CASES, ids=lambda given: given[:60])
def test_what_it_says_to_type_passes_its_check(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    overrides = given.split()
    dry = [] if "dry_run=false" in given else ["dry_run=true"]
    error = refused([*overrides, *dry])
    if error is None or not error.fix or PLACEHOLDER.search(error.fix) or error.fix.startswith("python -m"):
        return
    assert ", or " not in error.fix, "prose"
    typed = shlex.split(error.fix)
    assert all("=" in override or override.startswith("~") for override in typed), error.fix
    after = refused([*overrides, *dry, *typed])
    assert after is None or kind(after) != kind(error), f"{error}\n  then: {after}"


def test_a_fix_is_one_command_line_everywhere() -> None:
    """Whatever stands as `fix` in the source is no choice in prose."""
    import ast
    from pathlib import Path

    from pipeline.paths import CONF

    for folder in ("pipeline", "stages/settings"):
        for path in Path(CONF.parent / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError" and len(node.args) == 3:
                    text = ast.unparse(node.args[2])
                    assert ", or " not in text, f"{path}:{node.lineno}: {text}"
