"""The contract of all verbs: their names, how they are chosen and refused, and their imports."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from pipeline import commands as package
from pipeline.command_line.arguments import (
    COMMAND_LINE,
    OTHER_VERBS,
    VERBS,
    command_line,
    help_text,
    refuse_unknown_verb,
    verb_of,
)
from pipeline.config.names import read_options
from pipeline.paths import CONF
from pipeline.provenance.code_state import command
from stages.errors import UserError
from tests import commands
from tests.pipeline.test_light_imports import HEAVY

PARSED = [verb for verb in VERBS if verb != "run"]
"""Verbs with an argument parser. The arguments of `run` are overrides."""

NEEDED = {"diff": "run", "predict": "RUN|MODEL, files", "serve": "RUN|MODEL"}
"""Arguments that a verb requires."""

SCRIPT = """
import sys
import time
from importlib import import_module
import pipeline.__main__
for verb in {verbs}:
    import_module(f"pipeline.commands.{{verb}}")
print(*sorted(set({heavy}) & set(sys.modules)))
"""


def test_the_verbs_are_the_modules_of_the_package() -> None:
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
    assert modules - {"__init__"} == {*VERBS}
    assert {*OTHER_VERBS.values()} < {*VERBS}
    assert not {*OTHER_VERBS} & {*VERBS}


def test_code_configuration_and_documents_name_existing_verbs() -> None:
    """A plain word after `python -m pipeline` in messages, comments and pages must be a verb."""
    patterns = ("*.md", "Makefile", "Dockerfile", "docs/**/*.*", "conf/**/*.yaml", "pipeline/**/*.*", "stages/**/*.py")
    wrong = []
    for path in [path for pattern in patterns for path in commands.ROOT.glob(pattern)]:
        if path.suffix in (".py", ".md", ".yaml", ".jinja", ".html", ""):
            named = re.findall(r"python -m pipeline(?: |\.)([a-z]+)(?![\w.=/:@])", path.read_text())
            wrong += [f"{path.relative_to(commands.ROOT)}: {word}" for word in named if word not in VERBS]
            wrong += re.findall(r"python -m pipeline\.[a-z]+", path.read_text())
    assert not wrong


def test_the_help_of_the_command_lists_every_verb() -> None:
    text = help_text(read_options((CONF,)))
    for verb, (arguments, about) in VERBS.items():
        assert re.search(rf"^  python -m pipeline {re.escape(f'{verb} {arguments}'.strip())} +{about}$", text, re.M)


@pytest.mark.parametrize("verb", PARSED)
def test_each_verb_has_its_own_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"pipeline.commands.{verb}").main(["--help"])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.err) == (0, "")
    assert printed.out.startswith(f"usage: python -m pipeline {verb} [-h] [--outputs FOLDER]")


def test_verbs_do_not_import_what_only_their_work_needs() -> None:
    """So `--help` and errors take only the time to start Python and import the command line."""
    done = commands.run_alone(SCRIPT.format(verbs=[*VERBS], heavy=[*HEAVY, "hydra", "omegaconf", "rich", "jinja2"]))
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize("verb", PARSED)
def test_a_wrong_option_is_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [["--nope", *["x"] * 2]] + ([[]] if verb in NEEDED else [])
    problems = ["unrecognized arguments: --nope", f"the following arguments are required: {NEEDED.get(verb)}"]
    for words, problem in zip(wrong, problems, strict=False):
        assert import_module(f"pipeline.commands.{verb}").main(words) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert re.fullmatch(rf"error: {re.escape(problem)}.*\. Try: python -m pipeline {verb} --help\n", printed.err)


@pytest.mark.parametrize(
    ("words", "verb", "rest"),
    [
        ("", "run", ""),
        ("seed=1 -m", "run", "seed=1 -m"),
        ("run seed=1", "run", "seed=1"),
        ("runs --json", "runs", "--json"),
        ("outputs=/o", "run", "outputs=/o"),
        ("outputs=/o diff a b", "diff", "outputs=/o a b"),
        ("compare runs", "compare", "runs"),
        ("-m compare", "run", "-m compare"),
        ("run=abcd from=evaluate", "run", "run=abcd from=evaluate"),
        ("compar", "run", "compar"),
    ],
)
def test_the_first_word_is_the_verb(words: str, verb: str, rest: str) -> None:
    assert verb_of(words.split()) == (verb, rest.split())


SUGGESTED = {
    "compar": "python -m pipeline compare", "compar --columns=x": "python -m pipeline compare --columns=x",
    "outputs=/o compar": "python -m pipeline outputs=/o compare", "predikt 4d9eb298 'a b.png'": None,
    "Sync": "python -m pipeline sync", "server 4d9eb298": "python -m pipeline serve 4d9eb298",
    "train": "python -m pipeline run", "train seed=1": "python -m pipeline run seed=1",
    "ls status=FINISHED": "python -m pipeline runs status=FINISHED", "mlflow": "python -m pipeline ui",
    "help": "python -m pipeline --help", "nonsense": "python -m pipeline --help",
}  # fmt: skip


@pytest.mark.parametrize("given", SUGGESTED)
def test_an_unknown_verb_is_refused_with_a_suggestion(given: str) -> None:
    with pytest.raises(UserError, match=r"neither a verb nor an override\. Expected run, runs, .* or key=") as error:
        refuse_unknown_verb(shlex.split(given))
    assert error.value.fix == (SUGGESTED[given] or f"python -m pipeline {given.replace('predikt', 'predict')}")


@pytest.mark.parametrize("given", ["", "seed=1", "seed = 1", "seed", "model cnn", "-m", "~train", "houses.csv", "docs"])
def test_settings_flags_and_files_are_not_refused_as_verbs(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(commands.ROOT)
    refuse_unknown_verb(given.split())


def test_a_process_reports_an_unknown_verb_in_one_line() -> None:
    command = [sys.executable, "-m", "pipeline", "compar"]
    done = subprocess.run(command, cwd=commands.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 'compar' is neither a verb nor an override. Expected ")
    assert done.stderr.endswith(" Try: python -m pipeline compare\n")


def test_the_verb_run_is_the_default(tmp_path: Path) -> None:
    words = ("dry_run=true", f"outputs={tmp_path}", "seed=5")
    plans = [commands.succeed(*verb, *words, trains=False).stdout for verb in ((), ("run",))]
    assert plans[0] == plans[1]
    assert "seed 5" in plans[0]


def test_a_run_records_its_command_without_the_verb() -> None:
    token = COMMAND_LINE.set(("pipeline", "run", "seed=1", "resume=never"))
    try:
        assert command_line() == ("pipeline", "seed=1", "resume=never")
        assert command() == "python -m pipeline seed=1 resume=never"
    finally:
        COMMAND_LINE.reset(token)


def test_a_full_disk_behind_the_help_of_a_verb_is_an_error() -> None:
    command = f"'{sys.executable}' -m pipeline diff --help >/dev/full"
    done = subprocess.run(command, shell=True, cwd=commands.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device, so part of the output is lost\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_verb_at_once_with_its_exit_code(number: signal.Signals, tmp_path: Path) -> None:
    """The verb waits for an answer on a terminal. Nothing is printed, and nothing is deleted."""
    (tmp_path / "cache" / "data").mkdir(parents=True)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "pipeline", "clean", "--older-than=0", f"outputs={tmp_path}"]
    with subprocess.Popen(command, cwd=commands.ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = ""
        while "[y/N] " not in printed:  # fails if the process ends
            printed += os.read(ours, 1000).decode()
        while process.poll() is None:  # again, because Python misses a signal that arrives just before it reads
            process.send_signal(number)
            time.sleep(0.05)
        assert process.returncode == 128 + number
    assert "Traceback" not in printed
    with pytest.raises(OSError, match="Input/output"):  # nothing was printed after the question
        os.read(ours, 1000)
    os.close(ours)
    assert (tmp_path / "cache" / "data").is_dir()
