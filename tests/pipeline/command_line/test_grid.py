"""What varies in a sweep: on the command line, in files, zipped, with exclusions, and what is wrong of it."""

from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.experiment import read
from stages.errors import UserError


def composer(*words: str) -> Composer:
    return Composer(read_arguments(words))


def jobs(*words: str) -> list[str]:
    """Returns the jobs that a command asks for, each as its overrides."""
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
def test_values_make_jobs(words: list[str], expected: list[str]) -> None:
    assert jobs(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "seed=1,2", "train.epochs=1,2,3", "sweep.zip=[seed,train.epochs]"], "numbers of values differ"),
        (["-m", "seed=1,2", "train.epochs=1", "sweep.zip=[seed,train.epochs]"], "train.epochs, which does not vary"),
        (["-m", "seed=1,2", "sweep.zip=[seed]"], "does not say what advances together"),
        (["-m", "seed=1,2", "sweep.exclude=[{seed: [1,2]}]"], "leaves no job"),
        (["-m", "seed=1,2", "sweep.n_jobs=1,2"], "several values to one run"),
        (["sweep.n_jobs=2"], "is for a sweep, and this is one run"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        jobs(*words)
    assert "\n" not in str(caught.value)


def test_a_sweep_of_a_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(
        "defaults:\n  - /schema/sweep@_here_: sweep\n  - _self_\n"
        "over:\n  model: [cnn, mlp]\n  optimizer.learning_rate: [0.1, 1e-3]\n  seed: 3\n"
        "zip: [model, optimizer.learning_rate]\nn_jobs: 2\n"
    )
    words = ("--config-dir", str(tmp_path), "sweep=mine")
    assert jobs(*words) == [
        "model=cnn optimizer.learning_rate=0.1 seed=3", "model=mlp optimizer.learning_rate=0.001 seed=3"
    ]  # fmt: skip
    assert composer(*words).sweep.n_jobs == 2


def test_what_a_sweep_is_changes_no_job() -> None:
    """The same job has the same configuration, overrides and identity, whatever sweep it is of."""
    [first, _] = composer("-m", "seed=1,2").jobs()
    [other, _] = composer("-m", "seed=1,2", "sweep.n_jobs=2", "sweep.retries=1").jobs()
    assert first.overrides == other.overrides
    assert "sweep" not in read(first.document, first.choices).document
