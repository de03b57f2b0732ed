"""Nothing that is typed is accepted and ignored: each word has an effect, or is refused with what to type."""

import time
from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.command_line.overrides import checked, parsed
from pipeline.config.experiment import read
from pipeline.config.names import read_options
from pipeline.config.schemas import SCHEMAS
from pipeline.paths import CONF
from stages.errors import UserError
from tests.pipeline.experiments import schema_nodes


def composed(*words: str) -> Composer:
    return Composer(read_arguments(words))


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
def test_every_setting_and_group_of_hydras_is_refused(prefix: str) -> None:
    options = read_options([CONF])
    for key in ("hydra", "hydra.run.dir", "hydra.nothing", "hydra/launcher"):
        for mode in (False, True):
            with pytest.raises(UserError, match=r"Hydra's own settings have no effect here.*Try: "):
                checked(parsed([f"{prefix}{key}=basic", "dry_run=true"]), options, mode)


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


@pytest.mark.slow
def test_what_is_added_where_a_schema_is_is_refused_everywhere() -> None:
    composer = composed()
    nodes = schema_nodes(composer.one().document)
    assert {*SCHEMAS} - {"network", "format"} <= {*nodes}
    assert {"model.network", "export.formats.saved_model"} <= {*nodes}
    for node in nodes:
        for key in ("+{}.new", "++{}.new.below", "+{}._target_"):
            if key.endswith("_target_") and node not in ("optimizer", "schedule", "precision", "debug"):
                continue  # the schema has it
            one = composer.compose(parsed([f"{key.format(node)}=keras.optimizers.RMSprop"]))
            with pytest.raises(UserError) as refused:
                read(one.document, one.choices)
            assert node in str(refused.value)
            assert "Try: " in str(refused.value)


def test_a_name_that_refers_to_a_group_is_not_set() -> None:
    """It would cut the stage off its group: `train.optimizer` is `${optimizer}`."""
    for given in ("+train.optimizer.foo=1", "load=null", "model.precision={policy: x}"):
        with pytest.raises(UserError, match="refers to"):
            composed(given).one()


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_hydras_ways_to_choose_an_option_choose_it(plus: str) -> None:
    one = composed(f"{plus}experiment=mnist_cnn", f"{plus}model=mlp").one()
    assert (one.choices["experiment"], one.choices["model"], one.document.name) == ("mnist_cnn", "mlp", "mnist_cnn")
    assert one.overrides == ("experiment=mnist_cnn", "model=mlp")  # so a fork can give it again
    assert composed("experiment=null").one().choices["experiment"] is None


@pytest.mark.parametrize("given", ["experiment@_global_=mnist_cnn", "optimizer@other=sgd", "model=[cnn,mlp]", "model=",
                                   "model=1", "optimizer=null", "seed=range(1,3)", "model=nothing"])  # fmt: skip
def test_what_chooses_no_option_says_what_to_type(given: str) -> None:
    with pytest.raises(UserError, match=r"Try: (?!.*--help)"):
        composed(given).one()


@pytest.mark.parametrize(
    "given",
    ["seed=interval(0.1,0.2)", "seed=shuffle(1,2)", "seed=range(4,1)", "seed=range(1,4,0)", "seed=glob(*)",
     "model=glob(nothing*)", "model=cnn,nothing"],
)  # fmt: skip
def test_values_that_no_sweep_can_enumerate_say_what_to_type(given: str) -> None:
    with pytest.raises(UserError, match=r"Try: (?!.*--help)"):
        list(composed("-m", given).jobs())


def test_jobs_are_counted_without_being_composed() -> None:
    began = time.process_time()
    assert len(composed("-m", "optimizer.learning_rate=range(0,10000)", "seed=1,2").grid) == 20_000
    assert time.process_time() - began < 5
