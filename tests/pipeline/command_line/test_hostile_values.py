"""No value of any setting gives a traceback, or a run that fails for it: it is valid, or refused in one line."""

import dataclasses
import inspect
import pickle
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.checks.registry import check_rules
from pipeline.config.errors import explain
from pipeline.config.experiment import read
from pipeline.config.names import check_texts
from pipeline.config.schemas import SCHEMAS, TopSettings, is_address, top_level_key
from stages.errors import UserError
from tests.pipeline.experiments import command_error, compose

HOSTILE: tuple[Any, ...] = (
    2**31, 2**63, 10**400, float("nan"), float("-inf"), -1, -0.0, "1e400", "", "x\0y", "\ud800", "９",
    [1, [2]], {"a": 1}, None, True, "x" * 3000, "${nope}",
)  # fmt: skip
TEXT: tuple[Any, ...] = (
    10**400, float("nan"), "", " ", "x\0y", "\ud800", "a\nb", [], {"a": 1}, None, "x" * 3000, "${oc.env:NOPE}",
)  # fmt: skip
"""For a setting that is a text: it takes any number as its digits, which are all the same to it."""
CHOSEN = {
    "sweep.sweep": "sweep=none", "sweep.search": "sweep=tpe",
    "tracking": "tracking=local", "normalize": "normalize=auto", "augment": "augment=none",
    "inspect": "inspect=default", "precision": "precision=float32", "model": "model=cnn",
    "schedule.schedule": "schedule=constant",
    "evaluate": "evaluate=default", "export": "export=saved_model",
}  # fmt: skip
OPTIONS = {"resnet": "model=resnet20", "application": "model=application", "cnn_photo": "model=cnn_photo"}
GIVEN = {
    "tf_config": ["strategy=multi_worker"], "hosts": ["strategy=multi_worker", "cluster.hosts=[localhost:23457]"],
    "tfds": ["data.name=mnist", "data.download=true"], "image_folder": ["data.dir=."], "tpu": ["strategy.name=a"],
    "optimizer.custom": ["optimizer._target_=keras.optimizers.Lion"],
    "schedule.custom": ["schedule._target_=keras.optimizers.schedules.CosineDecay"],
}  # fmt: skip


def parts() -> Iterator[tuple[str, list[str], str, type]]:
    """Yields each schema with the overrides that choose it, and the dotted name of where it stands."""
    yield "top", [], "", TopSettings
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            if group == "format":
                yield f"{group}.{name}", ["export=all"], f"export.formats.{name}", schema
            elif f"{group}.{name}" == "cluster.custom":  # it has no option, and no setting that another does not have
                continue
            elif group == "network":
                yield name, [OPTIONS.get(name, f"model={name}")], "model.network", schema
            else:
                chosen = CHOSEN.get(f"{group}.{name}") or CHOSEN.get(group, f"{group}={name}")
                yield f"{group}.{name}", [chosen, *GIVEN.get(f"{group}.{name}", GIVEN.get(name, []))], group, schema


SEEN: set[tuple[str, str]] = set()


def first_definition(schema: type, name: str) -> str:
    """Returns the class that declares a field: what is inherited need not be tried in each heir."""
    return next(base.__name__ for base in reversed(schema.__mro__) if name in inspect.get_annotations(base))


def refusal(saved: bytes, choices: Mapping[str, str], path: str, value: Any) -> UserError | None:
    """Returns the error that the command would show with `value` at `path`, or None where it is taken.

    saved: the configuration, pickled: to copy it takes seven times as long.
    """
    changed: DictConfig = pickle.loads(saved)
    try:
        OmegaConf.update(changed, path, value, force_add=True)
        check_rules(read(changed, choices))
    except UserError as error:
        return error
    except (OmegaConfBaseException, OverflowError) as error:  # the command turns both into a line
        return explain(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("part", list(parts()), ids=lambda part: part[0])
def test_every_setting_takes_every_value_or_refuses_it(part: tuple[str, list[str], str, type]) -> None:
    _, overrides, place, schema = part
    usual = compose("dry_run=true")
    others = [word for word in overrides if usual.choices.get(word.partition("=")[0]) != word.partition("=")[2]]
    composed = compose(*others, "dry_run=true") if others else usual
    saved, choices = pickle.dumps(composed.document), composed.choices
    for field in dataclasses.fields(schema):
        if (first_definition(schema, field.name), field.name) in SEEN or field.name in ("pipeline", "outputs"):
            continue
        SEEN.add((first_definition(schema, field.name), field.name))
        values = TEXT if typing.get_type_hints(schema)[field.name] in (str, str | None) else HOSTILE
        for value in values[len(SEEN) % 3 :: 3]:  # its neighbors take the others
            path = f"{place}.{field.name}".lstrip(".") if place else top_level_key(field.name)
            error = refusal(saved, choices, path, value)
            if error is None:
                assert is_valid(value, field, schema), f"{path}={value!r:.80} is taken"
            else:
                assert str(error).isprintable(), (path, value)
                assert f"unknown setting '{path}'" not in error.problem  # as under another option
                assert len(str(error)) < 8000, (path, value)


def is_valid(value: Any, field: dataclasses.Field, schema: type) -> bool:
    """Returns whether a setting may have taken `value`: numbers must be ones that a run can compute with."""
    hint = typing.get_type_hints(schema)[field.name]
    if not isinstance(value, (int, float, str)) or isinstance(value, bool) or hint is Any:
        return True
    if hint in (bool, bool | None):  # any number but 0 is true
        return True
    kind = str(hint)
    if "str" in kind:
        return not isinstance(value, str) or ("\0" not in value and "\ud800" not in value)
    number, largest = float(value), 3.5e38 if "float" in kind else 2**31 - 1
    return abs(number) <= largest


LINES = {
    "a" * 200_000: "characters",
    "name=" + "x" * 200_000: "characters",
    "name=\udc80": "cannot be shown",
    "name=\x1b[31m": "cannot be shown",
}


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_command_lines_that_nothing_could_hold(line: str) -> None:
    with pytest.raises(UserError, match=LINES[line]) as raised:
        check_texts(["dry_run=true", line])
    assert len(str(raised.value)) < 5000
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "uri", ["http://[::1", "http://[::1]:x", "http://h:99999", "http://", "http://h:port", "http://:80"]
)
def test_what_is_no_address(uri: str) -> None:
    assert not is_address(uri)


@pytest.mark.parametrize(
    "uri", ["http://[::1]:5000", "https://u:p@h.example/x", "sqlite:////a b.db", "http://127.0.0.1:5000"]
)
def test_what_is_an_address(uri: str) -> None:
    assert is_address(uri)


CONFIGURATIONS = {
    "broken YAML": {"model/own.yaml": b"network: {a: [1\n"},
    "another encoding": {"model/own.yaml": "name: é\n".encode("utf-16")},
    "no UTF-8": {"model/own.yaml": b"name: \xff\xfe\n"},
    "a list": {"model/own.yaml": b"- 1\n- 2\n"},
    "nothing": {"model/own.yaml": b""},
    "defaults of nobody": {"model/own.yaml": b"defaults:\n  - /nope: x\n"},
    "a circle": {"model/own.yaml": b"defaults:\n  - /schema/model@_here_: model\n  - _self_\n"
                 b"network: {_target_: stages.networks.mlp.mlp, hidden: '${model.network.hidden}'}\n"},
    "a missing interpolation": {"model/own.yaml": b"defaults:\n  - /schema/model@_here_: model\n  - _self_\n"
                                b"network: {_target_: stages.networks.mlp.mlp, hidden: '${nope.x}'}\n"},
    "a circle of defaults": {"model/own.yaml": b"defaults:\n  - own\n"},
    "a NUL": {"model/own.yaml": b'weights: "a\\0b"\nnetwork: {}\n'},
    "an alias bomb": {"model/own.yaml": b"a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]\n"},
    "a tag of Python": {"model/own.yaml": b"a: !!python/object/apply:os.system ['true']\n"},
    "deep nesting": {"model/own.yaml": b"a: " + b"[" * 3000 + b"]" * 3000},
}  # fmt: skip


def assert_refused(given: Sequence[str]) -> None:
    error = command_error(list(given))
    assert error is not None, given
    assert "\n" not in str(error), (given, error)


@pytest.mark.slow
def test_configurations_of_ones_own_that_are_none(tmp_path: Path) -> None:
    for name, files in CONFIGURATIONS.items():
        for path, content in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True)
            (tmp_path / name / path).write_bytes(content)
        assert_refused(["--config-dir", str(tmp_path / name), "model=own", "dry_run=true"])
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        assert_refused(["--config-dir", str(folder), "dry_run=true"])


PIECES = r"""
train.epochs = seed [ ] { } , ' " \ + ~ ++ : ${ $ @ / 1 -1 1e400 nan null model cnn data=digits . é 🙂 * % () a=b=c
strategy=mirrored model.network.filters tracking.tags.a pipeline.train range(1,3) choice( ) hydra.
""".split()  # noqa: SIM905


@pytest.mark.slow
def test_command_lines_at_random() -> None:
    """Pieces of real command lines, glued together at random: refused in one line, or a plan."""
    randomly = random.Random(7)
    for _ in range(12):
        given = ["".join(randomly.choices(PIECES, k=randomly.randint(1, 5))) for _ in range(randomly.randint(1, 3))]
        given = [argument for argument in given if not argument.startswith("-") and argument.strip()]
        error = command_error([*given, "dry_run=true"])
        assert error is None or "\n" not in str(error), (given, error)
