"""Nothing that is typed is accepted and ignored: each word has an effect, or is refused with what to type."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.command_line.overrides import checked, parsed
from pipeline.config.experiment import read
from pipeline.config.names import read_options
from pipeline.config.schemas import SCHEMAS
from pipeline.paths import CONF
from stages.errors import UserError
from tests.pipeline.experiments import experiment

OPTIONS = read_options([CONF])


def composed(*words: str) -> Composer:
    return Composer(read_arguments(words))


def jobs(*words: str) -> list[tuple[str, ...]]:
    """Returns the overrides of every job of a sweep."""
    return [job.overrides for job in composed("-m", *words).jobs()]


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
def test_every_setting_and_group_of_hydras_is_refused(prefix: str) -> None:
    for key in ("hydra", "hydra.run.dir", "hydra.sweeper.n_jobs", "hydra.nothing", "hydra/launcher", "hydra/env"):
        for mode in (False, True):
            with pytest.raises(UserError, match=r"Hydra's own settings have no effect here.*Try: "):
                checked(parsed([f"{prefix}{key}=basic", "dry_run=true"]), OPTIONS, mode)


def test_a_users_file_refers_to_choices_and_to_hydras_own_node(tmp_path: Path) -> None:
    """Which are composed where a file asks for them alone."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /noted@notes: ${experiment}\n  - override /model: mlp\n"
        "name: ${hydra:runtime.choices.model}_of_mine\n"
    )
    (tmp_path / "noted").mkdir()
    (tmp_path / "noted" / "mine.yaml").write_text("said: yes of it\n")
    document = composed("--config-dir", str(tmp_path), "experiment=mine").one().document
    assert (document.name, document.notes.said) == ("mlp_of_mine", "yes of it")


def schema_nodes() -> list[str]:
    """Returns the name of every part of the default configuration that has a schema."""
    document = composed().one().document
    found = []

    def walk(node: Any, name: str) -> None:
        if not OmegaConf.is_dict(node):
            return
        if dataclasses.is_dataclass(OmegaConf.get_type(node)):
            found.append(name)
        for key in node:
            if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
                walk(node[key], f"{name}.{key}".lstrip("."))

    walk(document, "")
    return found


@pytest.mark.slow
def test_what_is_added_where_a_schema_is_is_refused_everywhere() -> None:
    nodes, composer = schema_nodes(), composed()
    assert {*SCHEMAS} - {"network", "format"} <= {*nodes}
    assert {"model.network", "export.formats.saved_model"} <= {*nodes}
    for node in nodes:
        for prefix in ("+", "++"):
            for key in ("_target_", "_partial_", "new", "new.below"):
                given = f"{prefix}{node}.{key}=keras.optimizers.RMSprop"
                schema_has_it = key == "_target_" and node not in ("optimizer", "schedule", "precision", "debug")
                if schema_has_it:
                    continue
                one = composer.compose(parsed([given]))
                with pytest.raises(UserError) as refused:
                    read(one.document, one.choices)
                assert node in str(refused.value)
                assert "Try: " in str(refused.value)


def test_an_optimizer_by_its_function_is_told_which_ones_there_are() -> None:
    with pytest.raises(
        UserError,
        match=r"Expected optimizer=custom\. Try: optimizer=custom optimizer\._target_=keras\.optimizers\.RMSprop",
    ):
        experiment("+optimizer._target_=keras.optimizers.RMSprop")


def test_a_name_that_refers_to_a_group_is_not_set() -> None:
    """It would cut the stage off its group: `train.optimizer` is `${optimizer}`."""
    for given in (
        "+train.optimizer.foo=1",
        "train.optimizer=null",
        "load=null",
        "+load.x=1",
        "model.precision={policy: x}",
    ):
        with pytest.raises(UserError, match="refers to"):
            composed(given).one()


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_hydras_ways_to_choose_an_option_choose_it(plus: str) -> None:
    one = composed(f"{plus}experiment=mnist_cnn", f"{plus}model=mlp").one()
    assert (one.choices["experiment"], one.choices["model"], one.document.name) == ("mnist_cnn", "mlp", "mnist_cnn")
    assert one.overrides == ("experiment=mnist_cnn", "model=mlp")  # so a fork can give it again
    assert composed("experiment=null").one().choices["experiment"] is None


@pytest.mark.parametrize("given", ["experiment@_global_=mnist_cnn", "optimizer@other=sgd", "model=[cnn,mlp]", "model=",
                                   "model=1", "optimizer=null", "seed=range(1,3)", "seed=choice(1,2)",
                                   "model=nothing"])  # fmt: skip
def test_what_chooses_no_option_says_what_to_type(given: str) -> None:
    with pytest.raises(UserError, match=r"Try: (?!.*--help)"):
        composed(given).one()


@pytest.mark.slow
def test_every_way_to_give_several_values_works_or_says_what_to_type() -> None:
    assert [job[0] for job in jobs("seed=range(1,4)")] == ["seed=1", "seed=2", "seed=3"]
    assert [job[0] for job in jobs("seed=choice(5,3)")] == ["seed=5", "seed=3"]
    assert [job[0] for job in jobs("seed=sort(5,3,4)")] == ["seed=3", "seed=4", "seed=5"]
    assert [job[0] for job in jobs("model=glob(cnn*)")] == ["model=cnn", "model=cnn_photo"]
    assert [job[0] for job in jobs("model.network.filters=[4],[8,8]")] == [
        "model.network.filters=[4]",
        "model.network.filters=[8,8]",
    ]
    assert jobs("seed=1,2", "optimizer=adam,sgd")[1] == ("seed=1", "optimizer=sgd")  # the last changes fastest
    wrong = ["interval(0.1,0.2)", "shuffle(1,2)", "shuffle(range(1,4))", "range(4,1)", "range(1,4,0)", "glob(*)"]
    for given in (*(f"seed={values}" for values in wrong), "model=glob(nothing*)", "model=cnn,nothing"):
        with pytest.raises(UserError, match=r"Try: (?!.*--help)"):
            list(composed("-m", given).jobs())


LENGTHS = {
    "range(0,10000)": 10_000,
    "range(0,1,0.1)": 10,
    "range(5,0,-2)": 3,
    "1,2": 2,
}


@pytest.mark.parametrize(("given", "length"), LENGTHS.items())
def test_jobs_are_counted_without_being_composed(given: str, length: int) -> None:
    began = time.process_time()
    composer = composed("-m", f"optimizer.learning_rate={given}", "seed=1,2")
    assert len(composer.grid) == 2 * length
    assert time.process_time() - began < 5
    if length < 100:
        assert len(list(composer.jobs())) == 2 * length
