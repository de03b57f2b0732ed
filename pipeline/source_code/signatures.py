"""Definitions and signatures of the functions and classes that a `_target_` names, read from their source.

Importing them would start TensorFlow, and a wrong configuration must be refused before that.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.source_code.packages import find_package, is_installed
from stages.errors import UserError


class AbsentError(LookupError):
    """A module that certainly does not exist, or certainly lacks a name."""


@dataclass(frozen=True)
class Module:
    """A module's source. name: its dotted name; place: its file."""

    name: str
    place: Path
    body: tuple[ast.stmt, ...]

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own, neither installed nor of this project."""
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
    """Parameters by name, in order. open: whether it takes further keywords."""

    parameters: Mapping[str, Parameter]
    open: bool


def find_module(name: str) -> Module | None:
    """Returns the source of a module, without importing it or its parents; None where it is not written in Python.

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
        raise UserError(f"{place} is not Python: {reason}{line}", "a module that Python can read") from error


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
    """Returns the definition of a function or a class by its import path; None where only its import could show it.

    Raises:
        AbsentError: where there is none.
    """
    module, _, name = target.rpartition(".")
    if not module:
        raise AbsentError(target)
    source = find_module(module)
    return None if source is None else _definition(source, name, ())


def _definition(module: Module, name: str, seen: tuple[tuple[str, str], ...]) -> Definition | None:
    """Returns the definition of `name` in `module`, from wherever it is imported."""
    bindings = [statement for statement in module.body if name in names_bound_by(statement)]
    if not bindings:
        if _is_dynamic(module):
            return None
        raise AbsentError(f"{module.name}.{name}")
    if len(bindings) > 1 or (module.name, name) in seen:
        return None
    statement = bindings[0]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return Definition(statement, module)
    if isinstance(statement, ast.ImportFrom):
        alias = next(part for part in statement.names if (part.asname or part.name) == name)
        source = absolute_import(module, statement)
        inner = find_module(source) if source else None
        try:
            return None if inner is None else _definition(inner, alias.name, (*seen, (module.name, name)))
        except AbsentError:  # a module of that name, or defined by an extension
            return None
    return None


def absolute_import(module: Module, statement: ast.ImportFrom) -> str | None:
    """Returns the absolute name of the module that an import statement names."""
    if not statement.level:
        return statement.module
    parts = module.name.split(".")
    package = parts if module.place.name == "__init__.py" else parts[:-1]
    parents = package[: len(package) - statement.level + 1]
    return ".".join([*parents, *([statement.module] if statement.module else [])]) or None


def names_bound_by(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement of a module binds, including in its branches."""
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
        if "__getattr__" in names_bound_by(statement) or "*" in names_bound_by(statement):
            return True
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            called = {getattr(node.func, "id", "") for node in ast.walk(statement) if isinstance(node, ast.Call)}
            if called & {"globals", "vars", "setattr", "exec", "locals"}:
                return True
    return False


def signature(definition: Definition | None) -> Signature | None:
    """Returns the signature of a definition; None where its source does not show it."""
    if definition is None:
        return None
    node = definition.node
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else _of_arguments(node.args, skip=0)
    if [name_of(decorator) for decorator in node.decorator_list] == ["dataclass"]:
        return _of_dataclass(definition, node)
    if any(name_of(decorator) != "keras_export" for decorator in node.decorator_list) or node.keywords:
        return None
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return None if statement.decorator_list else _of_arguments(statement.args, skip=1)
        if "__init__" in names_bound_by(statement) or "__new__" in names_bound_by(statement):
            return None
    if len(node.bases) == 1 and isinstance(node.bases[0], ast.Name):
        try:
            return signature(_definition(definition.module, node.bases[0].id, ()))
        except AbsentError:
            return None
    return None


def _of_dataclass(definition: Definition, node: ast.ClassDef) -> Signature | None:
    """Returns the signature of a dataclass that extends at most one other; None where its source does not show it."""
    parameters: dict[str, Parameter] = {}
    if (
        len(node.bases) > 1
        or node.keywords
        or "__init__" in {name for part in node.body for name in names_bound_by(part)}
    ):
        return None
    for base in node.bases:
        try:
            inherited = signature(_definition(definition.module, base.id, ())) if isinstance(base, ast.Name) else None
        except AbsentError:
            return None
        if inherited is None:
            return None
        parameters |= inherited.parameters
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(statement.value, ast.Call):  # of `field`, perhaps, which may mean anything
            return None
        if "ClassVar" not in ast.unparse(statement.annotation):
            parameters[statement.target.id] = Parameter(statement.value is None, statement.annotation)
    return Signature(parameters, False)


def name_of(expression: ast.expr) -> str:
    """Returns the last name of a dotted expression, or an empty string."""
    if isinstance(expression, ast.Call):
        return name_of(expression.func)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def _of_arguments(arguments: ast.arguments, skip: int) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = {
        argument.arg: Parameter(index < required, argument.annotation) for index, argument in enumerate(positional)
    }
    for name in list(parameters)[:skip]:
        del parameters[name]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters[argument.arg] = Parameter(default is None, argument.annotation)
    return Signature(parameters, arguments.kwarg is not None)


def plain_types(definition: Definition, call: Signature) -> Iterator[tuple[str, type]]:
    """Yields the parameters that are annotated as a number or a bool, with that type."""
    plain = {"int": int, "float": float, "bool": bool}
    for name, parameter in call.parameters.items():
        text = "" if parameter.annotation is None else ast.unparse(parameter.annotation).strip("'\"")
        kind = plain.get(text.removesuffix(" | None"))
        if kind is not None and not any(
            kind.__name__ in names_bound_by(statement) for statement in definition.module.body
        ):
            yield name, kind
