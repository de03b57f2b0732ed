"""Each override has an effect or is refused with a suggestion; a sweep varies them by flags, files, zip and exclude."""

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
from stages.settings.ranges import quoted
from tests.pipeline.experiments import schema_nodes, write_files


def composer(*words: str) -> Composer:
    return Composer(read_arguments(words))


def jobs(*words: str) -> list[str]:
    """Return the jobs of a command, each as its overrides."""
    made = composer(*words)
    assert made.is_sweep
    return [" ".join(lines) for lines in made.grid]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "seed=range(0,3)"], ["seed=0", "seed=1", "seed=2"]),
        (["-m", "seed=choice(4,5)"], ["seed=4", "seed=5"]),
        (["-m", "model=glob(cnn*)"], ["model=cnn", "model=cnn_photo"]),
        (["-m", "seed=sort(3,1)"], ["seed=1", "seed=3"]),
        (["-m", "a=1,2", "b=x,y"], ["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]),
        (["-m", "seed=1,2", "data.split_seed=3,4", "sweep.zip=[seed,data.split_seed]"],
         ["seed=1 data.split_seed=3", "seed=2 data.split_seed=4"]),
        (["-m", "a=1,2", "c=5,6", "b=3,4", "sweep.zip=[[a,b]]"],
         ["a=1 c=5 b=3", "a=1 c=6 b=3", "a=2 c=5 b=4", "a=2 c=6 b=4"]),
        (["-m", "strategy=one_device,mirrored", "precision=float32,float16",
          "sweep.exclude=[{strategy: mirrored, precision: float16}]"],
         ["strategy=one_device precision=float32", "strategy=one_device precision=float16",
          "strategy=mirrored precision=float32"]),
        (["sweep=seeds", "seed=7,8"], ["seed=7", "seed=8"]),
        (["-m", "sweep=seeds", "sweep.n=1", "train.epochs=1,2"], ["seed=0 train.epochs=1", "seed=0 train.epochs=2"]),
        (["+sweep.over={seed: [1, 2]}"], ["seed=1", "seed=2"]),
    ],
)  # fmt: skip
def test_values_are_expanded_to_jobs(words: list[str], expected: list[str]) -> None:
    assert jobs(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "seed=1,2", "train.epochs=1,2,3", "sweep.zip=[seed,train.epochs]"], "seed has 2, train.epochs has 3"),
        (["-m", "seed=1,2", "train.epochs=1", "sweep.zip=[seed,train.epochs]"], "train.epochs, which has only one"),
        (["-m", "seed=1,2", "sweep.exclude=[{seed: [1,2]}]"], "excludes every job"),
        (["-m", "seed=1,2", "sweep.n_jobs=1,2"], "but a setting of the sweep itself takes only one"),
        (["sweep.n_jobs=2"], "only applies to a sweep, but this command starts a single run"),
    ],
)  # fmt: skip
def test_wrong_overrides_are_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        jobs(*words)
    assert "\n" not in str(caught.value)


def test_a_sweep_of_a_users_own_file(tmp_path: Path) -> None:
    mine = (
        "defaults:\n  - /schema/sweep@_here_: sweep\n  - _self_\n"
        "over:\n  model: [cnn, mlp]\n  optimizer.learning_rate: [0.1, 1e-3]\n  seed: 3\n"
        "zip: [model, optimizer.learning_rate]\nn_jobs: 2\n"
    )
    write_files(tmp_path, {"sweep/mine.yaml": mine})
    words = ("--config-dir", str(tmp_path), "sweep=mine")
    assert jobs(*words) == [
        "model=cnn optimizer.learning_rate=0.1 seed=3", "model=mlp optimizer.learning_rate=0.001 seed=3"
    ]  # fmt: skip
    assert composer(*words).sweep.n_jobs == 2


def test_the_settings_of_a_sweep_do_not_change_its_jobs() -> None:
    """The same job has the same configuration, overrides and identity in any sweep."""
    [first, _] = composer("-m", "seed=1,2").jobs()
    [other, _] = composer("-m", "seed=1,2", "sweep.n_jobs=2", "sweep.retries=1").jobs()
    assert first.overrides == other.overrides
    assert "sweep" not in read(first.document, first.choices).document


@pytest.mark.parametrize(
    "given",
    ["seed=interval(0.1,0.2)", "seed=shuffle(1,2)", "seed=range(4,1)", "seed=glob(*)",
     "model=glob(nothing*)", "model=cnn,nothing"],
)  # fmt: skip
def test_values_that_a_sweep_cannot_enumerate_are_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"Try: (?!.*--help)"):
        list(composer("-m", given).jobs())


def test_jobs_are_counted_without_being_composed() -> None:
    began = time.process_time()
    assert len(composer("-m", "optimizer.learning_rate=range(0,10000)", "seed=1,2").grid) == 20_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
def test_hydras_settings_and_groups_are_refused(prefix: str) -> None:
    options = read_options([CONF])
    for key in ("hydra", "hydra.run.dir", "hydra.nothing", "hydra/launcher"):
        for mode in (False, True):
            with pytest.raises(UserError, match=r"Hydra's own settings have no effect here.*Try: "):
                checked(parsed([f"{prefix}{key}=basic", "dry_run=true"]), options, mode)


def test_a_users_file_may_refer_to_choices(tmp_path: Path) -> None:
    mine = (
        "# @package _global_\ndefaults:\n  - /noted@notes: ${experiment}\n  - override /model: mlp\n"
        "name: ${hydra:runtime.choices.model}_of_mine\n"
    )
    write_files(tmp_path, {"experiment/mine.yaml": mine, "noted/mine.yaml": "said: yes of it\n"})
    document = composer("--config-dir", str(tmp_path), "experiment=mine").one().document
    assert (document.name, document.notes.said) == ("mlp_of_mine", "yes of it")


@pytest.mark.parametrize("text", ["C:\\a", "o'b\\x", "end\\", "a\\'b", ""])
def test_a_quoted_text_is_unchanged(text: str) -> None:
    assert parsed([f"name={quoted(text)}"])[0].value() == text


@pytest.mark.parametrize("name", ["model/cnn.yaml", "config.yaml"])
def test_a_users_file_that_would_be_ignored_is_refused(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, {name: "seed: 1\n"})
    with pytest.raises(UserError, match=f"{name}, so it would be ignored. Expected a different file name"):
        composer("--config-dir", str(tmp_path))


@pytest.mark.slow
def test_settings_added_to_a_schema_are_refused_everywhere() -> None:
    made = composer()
    nodes = schema_nodes(made.one().document)
    assert {*SCHEMAS} - {"network", "format"} <= {*nodes}
    assert {"model.network", "export.formats.saved_model"} <= {*nodes}
    for node in nodes:
        for key in ("+{}.new", "++{}.new.below", "+{}._target_"):
            if key.endswith("_target_") and node not in ("optimizer", "schedule", "precision", "debug"):
                continue  # the schema has it
            one = made.compose(parsed([f"{key.format(node)}=keras.optimizers.RMSprop"]))
            with pytest.raises(UserError) as refused:
                read(one.document, one.choices)
            assert node in str(refused.value)
            assert "Try: " in str(refused.value)


def test_a_reference_to_a_group_cannot_be_set() -> None:
    """A value would disconnect the stage from its group: `train.optimizer` is `${optimizer}`."""
    for given in ("+train.optimizer.foo=1", "load=null", "model.precision={policy: x}"):
        with pytest.raises(UserError, match="this setting is defined in the group"):
            composer(given).one()


@pytest.mark.parametrize("value", ["${oc.env:NONE_SUCH}", "${none.such}"])
def test_an_unresolvable_value_is_refused_in_one_line_and_may_be_replaced(value: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"experiment/mine.yaml": f"# @package _global_\ntrain: {{epochs: '{value}'}}\n"})
    words = [f"--config-dir={tmp_path}", "experiment=mine"]
    assert Composer(read_arguments([*words, "train.epochs=9"])).one().document.train.epochs == 9
    with pytest.raises(UserError, match=r"NONE_SUCH|none\.such"):
        Composer(read_arguments(words)).show(resolve=True)


def test_unquoted_values_may_have_letters_of_any_script() -> None:
    one = composer("data=image_folder", "data.dir=/home/jörg/图片", "tracking.note=Größe").one()
    assert (one.document.data.dir, one.document.tracking.note) == ("/home/jörg/图片", "Größe")
    table = composer("data=table", "data.files=x", "data.target=[Größe,Preis €]").one()
    assert table.document.data.target == ["Größe", "Preis €"]
    assert [job.document.name for job in composer("-m", "name=grün,rot").jobs()] == ["grün", "rot"]
    assert composer(*one.overrides).one().overrides == one.overrides
    for word in ("tracking.note=Größe (m)", "=3"):
        with pytest.raises(UserError, match="is not an override"):
            composer(word).one()


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_options_may_be_chosen_with_hydras_plus_signs(plus: str) -> None:
    one = composer(f"{plus}experiment=mnist_cnn", f"{plus}model=mlp").one()
    assert (one.choices["experiment"], one.choices["model"], one.document.name) == ("mnist_cnn", "mlp", "mnist_cnn")
    assert one.overrides == ("experiment=mnist_cnn", "model=mlp")  # so a fork can give it again
    assert composer("experiment=null").one().choices["experiment"] is None


@pytest.mark.parametrize("given", ["experiment@_global_=mnist_cnn", "optimizer@other=sgd", "model=[cnn,mlp]", "model=",
                                   "model=1", "optimizer=null", "seed=range(1,3)", "model=nothing"])  # fmt: skip
def test_a_choice_of_an_unknown_option_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"Try: (?!.*--help)"):
        composer(given).one()
