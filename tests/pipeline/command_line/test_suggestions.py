"""The suggestion of an error, added to the same command, passes the check that raised it."""

import re
from pathlib import Path

import pytest
import yaml

from pipeline.paths import CONF
from tests.pipeline.experiments import assert_refused, command_error, write_files

pytestmark = pytest.mark.slow

OTHER_WORDS = (CONF.parent / "pipeline" / "config" / "other_words.yaml").read_text()
MEANINGS: dict[str, str] = yaml.safe_load(OTHER_WORDS)


@pytest.mark.parametrize("fix", MEANINGS)
def test_words_of_other_projects_have_suggestions(fix: str) -> None:
    """Each suggestion names existing settings and does not lead to the same error."""
    word = MEANINGS[fix].split()[0]
    error = assert_refused([word if "=" in word else f"{word}=1"], is_replaced=True)
    assert error.fix == fix.replace("{}", "1")


def test_no_suggestion_is_listed_twice() -> None:
    """YAML would keep only the last one."""
    assert sum(line[:1] not in ("#", " ", "") for line in OTHER_WORDS.splitlines()) == len(MEANINGS)


MEANT = {
    "logger=false": "tracking=off", "gpus=0": "strategy=one_device", "trainer.max_epochs=3": "train.epochs=3",
    "maxEpochs=3": "train.epochs=3", "ckpt_path=null": "resume=never", "strategy=tpu_strategy": "strategy=tpu",
    "data=MNIST": "data=mnist", "early_stopping=true": "train.early_stopping_patience=…",
    "model=vit_b_16": "model=<option>", "optimizer.rho=0.9": "python -m pipeline --cfg job",
    "hydra/launcher=joblib": "sweep.n_jobs=2", "hydra.run.dir=x": "outputs=<folder>",
    "schedule.patience=3": "schedule=plateau schedule.patience=3", "train/epochs=3": "train.epochs=3",
}  # fmt: skip


@pytest.mark.parametrize("given", MEANT)
def test_an_unknown_option_gets_the_name_used_here_as_its_suggestion(given: str) -> None:
    assert assert_refused([given], is_replaced=True).fix == MEANT[given]


@pytest.mark.parametrize("given", ["tracking.uri=", "train.epochs=", "optimizer=", "train.callbacks="])
def test_an_empty_value_is_refused(given: str) -> None:
    assert assert_refused([given], is_replaced=True).fix


@pytest.mark.parametrize("given", ["train.epochs = 3", "train.epochs:3", "--train.epochs=3", "--train.batch-size 3"])
def test_other_spellings_are_refused_with_the_one_that_works(given: str) -> None:
    for words in ([given], given.split()):
        assert re.search(r"Expected .*key=value.*Try: [\w.-]+=", str(command_error(words)))


STANDARD = {
    "strategy": "strategy", "load": "dataset", "normalize": "dataset", "augment": "dataset", "inspect": "inspection",
    "model": "model", "train": "trained", "evaluate": "evaluation", "export": "exported",
}  # fmt: skip
ORDERS = {"load inspect": "", "strategy load model train": "", "load inspect model": "strategy", "train": "model"}
"""Orders of stages, with the input that is missing."""


@pytest.mark.parametrize("stages", ORDERS)
def test_a_custom_pipeline_works_or_its_missing_input_is_named(stages: str, tmp_path: Path) -> None:
    """The pipeline is in a file; the groups of stages that it leaves out exist, but are not read."""
    lines = "".join(f"{stage}: {STANDARD[stage]}\n" for stage in stages.split())
    write_files(tmp_path, {"pipeline/mine.yaml": lines})
    words = ["--config-dir", str(tmp_path), "pipeline=mine", "dry_run=true"]
    if lacking := ORDERS[stages]:
        assert assert_refused(words, "which no earlier stage returns").fix == f"pipeline.<stage>={lacking}"
    else:
        assert command_error(words) is None


MORE = (
    "schedule=step schedule.decay_epochs=[0]", "model.network.filters=[0]",
    "strategy=mirrored strategy.cpu_replicas=65", "strategy.device=cpu", "name=" + "x" * 300, "name=-",
    "name=runs", "name=sweeps", "name=Default",
    "data=image_folder data.dir=. data.size=x", "data=image_folder data.dir=. data.channels=2",
    "train.class_weights=[]", "+pipeline.extra=x", "precision.policy=x", "seed=99999999999",
    "optimizer.learning_rate=1e39", "seed=" + "9" * 400, "train.epochs=${train.epochs}", "train.epochs=${nope}",
    "name=${hydra:runtime.output_dir}", "name=${hydra:nope.typo}",
)  # fmt: skip


@pytest.mark.parametrize("given", MORE, ids=lambda given: given[:60])
def test_a_suggestion_passes_the_check(given: str) -> None:
    """`test_combinations` and `test_config` check this for all that they refuse."""
    assert_refused(["dry_run=true", *given.split()])
