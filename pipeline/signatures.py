"""Functions, classes and settings that a `_target_` names, read from their source.

Importing them would start TensorFlow, and a wrong configuration has to be known before that.
"""

import __future__

import ast
import builtins
import dataclasses
import importlib
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.environment import quiet_stderr
from pipeline.packages import find_package, is_installed
from stages.errors import UserError

HEAVY = frozenset(
    {"tensorflow", "keras", "tensorflow_datasets", "torch", "jax", "mlflow", "sklearn", "scipy", "pandas", "matplotlib"}
)
"""Packages that take seconds to import; settings classes seldom need them."""


class AbsentError(LookupError):
    """A module that does not exist, or has no such name. What may exist after all is no such error."""


@dataclass(frozen=True)
class Module:
    """A module's source. name: its dotted name; place: its file."""

    name: str
    place: Path
    body: tuple[ast.stmt, ...]

    @property
    def is_own(self) -> bool:
        """Whether it is the user's, neither installed nor of this project."""
        top = self.name.partition(".")[0]
        spec = find_package(top)
        return top not in ("stages", "pipeline") and spec is not None and not is_installed(spec)


@dataclass(frozen=True)
class Definition:
    """A function or a class, and the module that defines it."""

    node: ast.FunctionDef | ast.ClassDef
    module: Module


@dataclass(frozen=True)
class Parameter:
    """required: whether it has no default. annotation: its source, if any."""

    required: bool
    annotation: ast.expr | None


@dataclass(frozen=True)
class Signature:
    """Parameters by name, in order. open: whether any further keyword is taken."""

    parameters: Mapping[str, Parameter]
    open: bool


def find_module(name: str) -> Module | None:
    """Returns the source of a module, without importing it or its parents; None where it has none in Python.

    Raises:
        AbsentError: where there is no such module.
        UserError: where its source is not Python.
    """
    if name in sys.modules and not hasattr(sys.modules[name], "__file__"):
        return None
    top, *parts = name.split(".")
    spec = find_package(top) if top.isidentifier() else None
    if spec is None:
        raise AbsentError(name)
    if spec.submodule_search_locations is None:
        if parts and name not in sys.modules:  # os.path is one
            raise AbsentError(name)
        place: Path | None = Path(spec.origin or "")
    else:
        place = _in_package([Path(folder) for folder in spec.submodule_search_locations], parts, name)
    if place is None or place.suffix != ".py" or not place.is_file():
        return None
    return Module(name, place, _parsed(place, place.stat().st_mtime_ns))


@cache
def _parsed(place: Path, changed_ns: int) -> tuple[ast.stmt, ...]:
    try:
        return tuple(ast.parse(place.read_bytes()).body)
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{place} is no Python: {reason}{line}", "a module that Python can read") from error


def _in_package(folders: list[Path], parts: Sequence[str], name: str) -> Path | None:
    """Returns the file of a module below a package's `folders`; None for a namespace, which has none."""
    if any(not folder.is_dir() for folder in folders):  # in an archive
        return None
    file = next((folder / "__init__.py" for folder in folders if (folder / "__init__.py").is_file()), None)
    for part in parts:
        if not part.isidentifier():
            raise AbsentError(name)
        inner = [folder / part for folder in folders if (folder / part).is_dir()]
        modules = [path for folder in folders for path in folder.glob(f"{part}.*") if path.suffix in (".py", ".so")]
        file = next((folder / "__init__.py" for folder in inner if (folder / "__init__.py").is_file()), None)
        if file is None and modules:
            file = min(modules, key=lambda path: path.suffix != ".py")
        if file is None and not inner:
            raise AbsentError(name)
        folders = inner
    return file


def find(target: str) -> Definition | None:
    """Returns the definition of a function or a class by its import path; None where only importing it could tell.

    Raises:
        AbsentError: where there is none.
    """
    module, _, name = target.rpartition(".")
    if not module:
        raise AbsentError(target)
    source = find_module(module)
    return None if source is None else _definition(source, name, ())


def _definition(module: Module, name: str, seen: tuple[tuple[str, str], ...]) -> Definition | None:
    """Returns what `name` is in `module`, wherever it was imported from."""
    found = [statement for statement in module.body if name in _bound(statement)]
    if not found:
        if _is_dynamic(module):
            return None
        raise AbsentError(f"{module.name}.{name}")
    if len(found) > 1 or (module.name, name) in seen:
        return None
    statement = found[0]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return Definition(statement, module)
    if isinstance(statement, ast.ImportFrom):
        alias = next(part for part in statement.names if (part.asname or part.name) == name)
        source = _resolved(module, statement)
        inner = find_module(source) if source else None
        try:
            return None if inner is None else _definition(inner, alias.name, (*seen, (module.name, name)))
        except AbsentError:  # a module of that name, or what an extension defines
            return None
    return None


def _resolved(module: Module, statement: ast.ImportFrom) -> str | None:
    """Returns the absolute name of the module that an import statement names."""
    if not statement.level:
        return statement.module
    parts = module.name.split(".")
    package = parts if module.place.name == "__init__.py" else parts[:-1]
    kept = package[: len(package) - statement.level + 1]
    return ".".join([*kept, *([statement.module] if statement.module else [])]) or None


def _bound(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement of a module binds, in its branches, too."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _is_dynamic(module: Module) -> bool:
    """Returns whether a module may have names that its source does not show."""
    for statement in module.body:
        if "__getattr__" in _bound(statement) or "*" in _bound(statement):
            return True
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            called = {getattr(node.func, "id", "") for node in ast.walk(statement) if isinstance(node, ast.Call)}
            if called & {"globals", "vars", "setattr", "exec", "locals"}:
                return True
    return False


def signature(definition: Definition | None) -> Signature | None:
    """Returns what a call of a definition takes; None where its source does not tell."""
    if definition is None:
        return None
    node = definition.node
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else _of_arguments(node.args, skip=0)
    if any(_name_of(decorator) != "keras_export" for decorator in node.decorator_list) or node.keywords:
        return None
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return None if statement.decorator_list else _of_arguments(statement.args, skip=1)
        if "__init__" in _bound(statement) or "__new__" in _bound(statement):
            return None
    if len(node.bases) == 1 and isinstance(node.bases[0], ast.Name):
        try:
            return signature(_definition(definition.module, node.bases[0].id, ()))
        except AbsentError:
            return None
    return None


def _name_of(expression: ast.expr) -> str:
    if isinstance(expression, ast.Call):
        return _name_of(expression.func)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def _of_arguments(arguments: ast.arguments, skip: int) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    found = {one.arg: Parameter(index < required, one.annotation) for index, one in enumerate(positional)}
    for name in list(found)[:skip]:
        del found[name]
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[one.arg] = Parameter(default is None, one.annotation)
    return Signature(found, arguments.kwarg is not None)


def evaluate(expression: ast.expr, module: Module) -> Any:
    """Returns the value of an annotation of `module`, such as the class of a stage's settings.

    Only what the annotation needs of the module is executed, and TensorFlow is imported only where the value cannot do
    without it. Where that does not succeed, the module is imported as it is.
    """
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        expression = ast.parse(expression.value, mode="eval").body
    code = compile(ast.Expression(expression), str(module.place), "eval")
    try:
        space = _slice(module, _loaded(expression))
        return _real(eval(code, vars(space)))
    except Exception:  # whatever a part of a module may lack: the whole has it
        with quiet_stderr():
            return eval(code, vars(importlib.import_module(module.name)))


def _slice(module: Module, names: set[str]) -> ModuleType:
    """Returns a module with `names` of `module`, and what they need of it, defined."""
    space = ModuleType(f"settings of {module.name}")
    package = module.name if module.place.name == "__init__.py" else module.name.rpartition(".")[0]
    vars(space).update(__package__=package, __file__=str(module.place))
    sys.modules[space.__name__] = space  # dataclasses look their module up
    postponed = any(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in module.body)
    flags = __future__.annotations.compiler_flag if postponed else 0
    for statement in _needed(module, names):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            _import(statement, module, space, names)
        else:
            code = compile(ast.Module([statement], []), str(module.place), "exec", flags)
            exec(code, vars(space))
    return space


def _needed(module: Module, names: set[str]) -> list[ast.stmt]:
    """Returns the statements that bind `names`, and what those statements need; adds that to `names`."""
    chosen: set[int] = set()
    grown = True
    while grown:
        grown = False
        for index, statement in enumerate(module.body):
            if index in chosen or not (names & _bound(statement) or _changes(statement, names)):
                continue
            if isinstance(statement, ast.If) and _name_of(statement.test) == "TYPE_CHECKING":
                continue
            chosen.add(index)
            names |= _loaded(statement)
            grown = True
    return [module.body[index] for index in sorted(chosen)]


def _changes(statement: ast.stmt, names: set[str]) -> bool:
    """Returns whether a statement that binds none of `names` may change what one of them stands for."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Delete)):
        targets = statement.targets if isinstance(statement, (ast.Assign, ast.Delete)) else [statement.target]
        return any(_loaded(target) & names for target in targets)
    return bool(_loaded(statement) & names) and not isinstance(statement, ast.AnnAssign)


def _loaded(node: ast.AST) -> set[str]:
    """Returns the names that `node` reads, those in annotations that are strings too."""
    read = [part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    names = {part.id for part in read} - set(vars(builtins))
    for part in ast.walk(node):
        annotation = getattr(part, "annotation", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            names |= _loaded(ast.parse(annotation.value, mode="eval"))
    return names


def _import(statement: ast.Import | ast.ImportFrom, module: Module, space: ModuleType, names: set[str]) -> None:
    """Defines the names of an import statement that are needed, the heavy ones when they are used."""
    for alias in statement.names:
        bound = alias.asname or alias.name.partition(".")[0]
        if bound not in names and bound != "*":
            continue
        if isinstance(statement, ast.Import):
            whole = importlib.import_module if alias.asname else __import__
            vars(space)[bound] = _Lazy.unless_light(lambda whole=whole, name=alias.name: whole(name))
            continue
        source = _resolved(module, statement) or ""
        inner = _own(source)
        if inner is not None and source not in sys.modules and any(alias.name in _bound(one) for one in inner.body):
            vars(space)[bound] = getattr(_slice(inner, {alias.name}), alias.name)
        else:
            vars(space)[bound] = _Lazy.unless_light(lambda source=source, name=alias.name: _attribute(source, name))


def _own(name: str) -> Module | None:
    try:
        module = find_module(name)
    except AbsentError:
        return None
    return module if module is not None and module.is_own else None


def _attribute(module: str, name: str) -> Any:
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


class _HeavyImport(BaseException):  # past `except ImportError` and `except Exception` of the modules between
    pass


class _Refusal(MetaPathFinder):
    """Ends an import that comes to a heavy package."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in HEAVY:
            raise _HeavyImport(fullname)
        return None


class _Lazy:
    """Stands for what a heavy import gives, and imports it when it is used."""

    def __init__(self, load: Any) -> None:
        self.__load = load

    @classmethod
    def unless_light(cls, load: Any) -> Any:
        """Returns what `load` returns, or a stand-in where that would import a heavy package."""
        finder = _Refusal()
        sys.meta_path.insert(0, finder)
        try:
            return load()
        except _HeavyImport:
            return cls(load)
        finally:
            sys.meta_path.remove(finder)

    def _loaded(self) -> Any:
        with quiet_stderr():
            return self.__load()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded(), name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._loaded()(*given, **named)

    def __getitem__(self, key: Any) -> Any:
        return self._loaded()[key]

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._loaded(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._loaded())


def _real(value: Any) -> Any:
    return value._loaded() if type(value) is _Lazy else value


def plain_types(definition: Definition, found: Signature) -> Iterator[tuple[str, type]]:
    """Yields the parameters that are annotated as a number or a truth value, with that type."""
    plain = {"int": int, "float": float, "bool": bool}
    for name, parameter in found.parameters.items():
        text = "" if parameter.annotation is None else ast.unparse(parameter.annotation).strip("'\"")
        kind = plain.get(text.removesuffix(" | None"))
        if kind is not None and not any(kind.__name__ in _bound(one) for one in definition.module.body):
            yield name, kind


def declared_settings(target: str) -> type | None:
    """Returns the dataclass that the function `target` declares for its parameter `settings`, if it declares one."""
    try:
        definition = find(target)
    except AbsentError:
        return None  # the plan tells
    found = signature(definition)
    if definition is None or found is None or "settings" not in found.parameters:
        return None
    annotation = found.parameters["settings"].annotation
    return None if annotation is None else as_dataclass(evaluate(annotation, definition.module))


def as_dataclass(annotation: Any) -> type | None:
    """Returns the dataclass in an annotation, which may allow None, too; None where there is no such."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = parts[0] if len(parts) == 1 else None
    return annotation if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None
