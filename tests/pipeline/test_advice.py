"""The text after `Try:` in an error can be typed: existing settings and flags, or a whole command, but not prose.

The advice is read from the source, so new errors are checked without listing them.
"""

import ast
import dataclasses
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pipeline.checks.combinations import read_composed
from pipeline.command_line.arguments import FLAGS, names_run, read_arguments, refuse_unknown_verb, verb_of
from pipeline.command_line.compose import Composer
from pipeline.config.debug import debugged
from pipeline.config.errors import dotted
from pipeline.config.names import read_options
from pipeline.config.schemas import SCHEMAS, TopSettings, top_level_key
from pipeline.decide.decision import check
from pipeline.decide.inherited import inherit_overrides
from pipeline.launch.slots import deal_out
from pipeline.paths import CONF
from pipeline.search.work import work_of
from pipeline.sweep.select import read_all, select
from stages.errors import UserError
from tests.pipeline.advice import Case, commands, settings, training
from tests.pipeline.experiments import complaint, compose, write_run

ROOT = CONF.parent
PART = "…"
"""A placeholder for values that are known only at run time."""

CODE = (
    "multiprocessing.get_context(", "….toarray()", "keras.Input(", "return ", "importlib.reload(", "a last layer ",
    "name=own_", "name: mine", "from_logits: false", "keras.ops.mean(", "….update_state(", "trainable layers",
    "def ", "class ", "the function ", "import ",
)  # fmt: skip
"""Beginnings of advice for custom code."""

AGAIN = ("the same command again", "the command again in a new process")
"""Beginnings of advice to repeat the command."""


COMMANDS = ("mv", "mkdir", "srun", "pip", "unset", "eval", "TF_CONFIG")
"""First words of other commands, and environment variables."""


def _fields(schema: type) -> list[str]:
    return [field.name for field in dataclasses.fields(schema)]


def _names() -> set[str]:
    """Return the names of all settings of all options, and of the groups."""
    names = {top_level_key(name) for name in _fields(TopSettings)} | {*read_options((CONF,)).groups}
    names |= {*dotted(compose().document)}
    for group, schemas in SCHEMAS.items():
        prefix = "model.network" if group == "network" else group
        names |= {f"{prefix}.{name}" for schema in schemas.values() for name in _fields(schema)}
    return names | {"status", *(f"cluster.{name}" for name in ("index", "wait", "gpus", "cpus"))}


def is_typable(text: str, names: set[str]) -> bool:
    """Return whether advice is a command, or settings and flags of a command."""
    if text.startswith((*CODE, *AGAIN)):
        return True
    try:
        words = shlex.split(re.sub(r"(--[\w-]+) (?=[^-=\s]+$)", r"\1=", re.sub(r"<[^<>=]+>", PART, text)))
    except ValueError:  # a quote that is not closed
        return False
    words = [*itertools.dropwhile(re.compile("[A-Z_]+=").match, words[:-1]), *words[-1:]]  # variables
    if words[0].partition("=")[0] in COMMANDS:
        return True
    if words[:3] == ["python", "-m", "pipeline"]:
        verb, words = verb_of(words[3:])
        return verb != "run" or all(_is_word(word, names) for word in words)
    return all(_is_word(word, names) for word in words)


def _is_word(word: str, names: set[str]) -> bool:
    if word.lstrip("+").startswith(PART):
        return True
    if word.startswith("-"):
        return word.partition("=")[0] in OPTIONS
    if not (match := re.fullmatch(r"([+~]*)([^=<>]+)([<>]?=.*)?", word, re.DOTALL)):
        return False
    sign, name, value = match.groups()
    if value is None and sign != "~":
        return False
    return PART in name or name in names or name.rpartition(".")[0] in NAMED_BY_USERS


OPTIONS = (*FLAGS, "-m", "--outputs", "--output", "--tracking-uri", "--json", "--uri", "--port", "--yes")

NAMED_BY_USERS = (
    "model.encoders",
    "pipeline",
    "task.loss",
    "tracking.options",
    "optimizer.arguments",
    "schedule.arguments",
    "train.arguments",
)


def templates(node: ast.expr | None, local: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the possible texts of an expression, with PART for values that are not constant; nothing if unknown."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            parts: list[list[str]] = []
            for part in values:
                is_known = isinstance(part, ast.Constant)
                parts.append([str(part.value)] if is_known else [*templates(part.value, local)] or [PART])  # type: ignore[attr-defined]
            yield from map("".join, itertools.islice(itertools.product(*parts), 30))
        case ast.IfExp(body=body, orelse=orelse):
            yield from templates(body, local)
            yield from templates(orelse, local)
        case ast.BoolOp(values=values):
            for value in values:
                yield from templates(value, local)
        case ast.Name(id=name):
            for value in local.get(name, ()):
                yield from templates(value, {**local, name: []})


def advised() -> Iterator[tuple[str, str]]:
    """Yield the place (`file:function`) and the text of all advice in the source."""
    for path in sorted([*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "stages").rglob("*.py")]):
        module = ast.parse(path.read_text())
        shared = _assigned(ast.Module([one for one in module.body if isinstance(one, ast.Assign)], []))
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef):
                local = shared | _assigned(function)
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "UserError":
                        named = [word.value for word in call.keywords if word.arg == "fix"]
                        for fix in (*call.args[2:3], *named):
                            place = f"{path.relative_to(ROOT)}:{function.name}"
                            yield from ((place, text) for text in templates(fix, local))


def _assigned(node: ast.AST) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Assign) and len(one.targets) == 1:
            target, value = one.targets[0], one.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = [*zip(target.elts, value.elts, strict=True)]
            for name, part in pairs:
                if isinstance(name, ast.Name):
                    values.setdefault(name.id, []).append(part)
    return values


def test_all_advice_can_be_typed() -> None:
    names = _names()
    found = [*dict.fromkeys((place, text) for place, text in advised() if text)]
    assert len(found) > 200
    assert [f"{place}: {text}" for place, text in found if not is_typable(text, names)] == []


@pytest.mark.parametrize("text", ["another data.delimiter", "model=auto, or fewer layers", "data.nope=1", "--x or y=1"])
def test_prose_and_unknown_names_are_not_accepted_as_advice(text: str) -> None:
    assert not is_typable(text, _names())


CASES: dict[str, Case] = {**commands.CASES, **settings.CASES, **training.CASES}
"""For each place in the source, a command or a call that leads to its advice."""

UNREACHED: dict[str, str] = {**commands.UNREACHED, **settings.UNREACHED, **training.UNREACHED}
"""Places that cannot be tested, with the reason."""


def test_every_place_with_advice_has_a_case() -> None:
    places = {place for place, text in advised() if text}
    assert sorted(places - CASES.keys() - UNREACHED.keys()) == []


FILLED = {
    "<value>": "1", "<option>": "digits", "<folder>": "conf", "<directory>": "docs", "<run id>": "0123abcd",
    "<more>": "50", "<another>": "0", "<file>": "conf/data/mine.yaml", "<a folder without keras.json>": ".",
}  # fmt: skip
"""Values that a user would type for placeholders in advice; other placeholders are unchanged."""


@pytest.mark.parametrize("place", CASES)
def test_following_the_advice_works(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command with the advice is accepted, or at least not refused at the same place for the same reason."""
    reached: list[str] = []
    initialize = UserError.__init__

    def record(error: UserError, problem: str, expected: Any = "", fix: str = "") -> None:
        code = sys._getframe(1).f_code
        reached.append(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_name}")
        initialize(error, problem, expected, fix)

    monkeypatch.setattr(UserError, "__init__", record)
    monkeypatch.chdir(tmp_path)
    case = CASES[place]
    given = case if isinstance(case, str) else case(tmp_path)
    words = shlex.split(given if isinstance(given, str) else given[1])
    error = _error(words) if isinstance(given, str) else given[0]
    assert error is not None
    assert place in reached
    fix = error.fix.replace("<value>,<value>", "1,2")
    advice = shlex.split(re.sub(r"<[^<>=]+>", lambda part: FILLED.get(part[0], part[0]), fix))
    while variable := re.match("([A-Z_]+)=(.*)", advice[0]):
        monkeypatch.setenv(*variable.groups())
        advice = advice[1:]
    if advice[0] in ("mkdir", "mv"):
        subprocess.run(advice, check=True)
        afterwards = [words]
    elif advice[:2] == ["python", "-m"]:
        afterwards = [advice]
    else:  # typed after the command, or in the place of its last words
        afterwards = [[*words[:count], *advice] for count in range(len(words), max(len(words) - 3, -1), -1)]
    answers = map(_error, afterwards)  # up to the first one that is accepted
    assert any(answer is None or complaint(answer) != complaint(error) for answer in answers), error


@pytest.mark.parametrize("given", ["test/acc>0.9", "test/accurcy>=0.9", "test/lss<1", "experimnt=tried"])
def test_a_filter_with_an_unknown_name_gets_the_nearest_as_a_suggestion(given: str, tmp_path: Path) -> None:
    metrics = {"test/accuracy": 0.95, "test/loss": 0.2, "test/macro_f1": 0.9}
    write_run(tmp_path / "runs" / "tried" / "20260101-000000-abcdef12", metrics=metrics)
    entries = read_all(tmp_path)
    with pytest.raises(UserError) as raised:
        select(entries, [given])
    assert len(select(entries, shlex.split(raised.value.fix))) == 1


def _error(words: list[str]) -> UserError | None:
    """Return the error of a command, which is checked but not run; for verbs other than `run`, only its words are."""
    verb = "run"
    if words[:2] == ["python", "-m"]:
        assert words[2] == "pipeline"
        verb, words = verb_of(words[3:])
        refuse_unknown_verb(words if verb == "run" else [])  # which ends the test
    try:
        if verb != "run":
            with suppress(SystemExit):  # after `--help`
                import_module(f"pipeline.commands.{verb}").main.parse_args(words)
            return None
        arguments = read_arguments(words)
        composer = Composer(inherit_overrides(arguments) if names_run(arguments) else arguments)
        if not composer.is_sweep:
            check(debugged(read_composed(composer.one())))
        else:
            work = work_of(composer)
            deal_out(work.settings, work.experiments)
    except UserError as error:
        return error
    return None
