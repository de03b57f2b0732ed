"""Completion of the command line, such as `tf-pipeline tr<Tab>`, also in a real bash."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.command_line.arguments import VERBS
from pipeline.command_line.completion import SCRIPT, complete, matches
from pipeline.commands.run import _flags
from stages.errors import UserError
from tests.pipeline.experiments import write_files


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--mu", {"--multirun"}),
        ("strat", {"strategy=", "strategy."}),
        ("strategy=mir", {"strategy=mirrored"}),
        ("+experiment=mnist_c", {"+experiment=mnist_cnn"}),
        ("train.batch_", {"train.batch_size="}),
        ("model.netw", {"model.network."}),
        ("model=mlp model.network.hidden", {"model.network.hidden="}),
        ("deterministic=", {"deterministic=false"}),
        ("-m seed=1,2 model=cnn,mlp optimizer.learning_r", {"optimizer.learning_rate="}),
        ("sweep=tpe sweep.tri", {"sweep.trials="}),
        ("trian.epochs=3 mod", set()),
        ("train.optim", set()),  # it refers to the group `optimizer`
        ("hydra.run", set()),
        ("schema", set()),
        ("run", {"run", "runs", "run="}),
        ("pre", {"predict", "precision=", "precision."}),
        ("run comp", set()),  # a second verb
        ("run --mu", {"--multirun"}),
        ("run strategy=mir", {"strategy=mirrored"}),
        ("compare --b", {"--baseline"}),
        ("outputs=/o sync --", {"--help", "--outputs", "--uri", "--again"}),
        ("predict 4d9eb298 pho", set()),  # the shell completes files
        ("clean ", set()),
    ],
)
def test_the_last_word_is_completed(words: str, expected: set[str]) -> None:
    assert set(matches(f"tf-pipeline {words}", _flags)) == expected


def test_an_empty_word_offers_verbs_groups_and_settings() -> None:
    offered = matches("tf-pipeline ", _flags)
    assert offered[: len(VERBS)] == [*VERBS]
    assert {"model=", "train.", "seed="} <= {*offered}
    assert "train=" in offered  # `train` is a group as well


def test_files_and_custom_options_are_completed(tmp_path: Path) -> None:
    write_files(tmp_path, {"model/mine.yaml": "defaults: [cnn]\n", "a b.csv": "x\n"})
    assert matches(f"tf-pipeline --config-dir {tmp_path} model=mi", _flags) == ["model=mine"]
    assert matches(f"tf-pipeline data.files={tmp_path}/a", _flags) == [f"data.files={tmp_path}/a b.csv"]


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """`=` belongs to the word, and only the text before the cursor counts."""
    answer = tmp_path / "tf-pipeline"
    code = "import sys; sys.argv[0] = 'tf-pipeline'; from pipeline.__main__ import main; main()"
    answer.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    answer.chmod(0o755)
    line = "tf-pipeline strategy=mir train.epochs=3"
    typed = (
        f'COMP_LINE="{line}" COMP_POINT=24; _tf_pipeline; printf "%s\\n" "${{COMPREPLY[@]}}"; complete -p tf-pipeline'
    )
    bash = ["bash", "-c", f'PATH="{tmp_path}:$PATH"\neval "$(tf-pipeline --shell-completion install=bash)"\n{typed}']
    done = subprocess.run(bash, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    offered, registered = done.stdout.splitlines()
    assert offered == "strategy=mirrored"
    assert {"nospace", "default", "_tf_pipeline"} < {*registered.split()}
    assert "tf-pipeline --shell-completion query=bash" in SCRIPT


@pytest.mark.parametrize("words", [[], ["install=zsh"], ["install=bash"]])
def test_other_shells_and_commands_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="requires install=bash and the command tf-pipeline"):
        complete(words, _flags)  # of `python -m pytest`
