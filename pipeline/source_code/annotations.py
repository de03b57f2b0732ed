"""Values of annotations, such as the class of a stage's settings, evaluated by executing only the needed statements.

Importing the whole module would start TensorFlow, and a wrong configuration must be refused before that.
"""

import __future__

import ast
import builtins
import dataclasses
import importlib
import sys
import types
import typing
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pipeline.source_code.signatures import (
    AbsentError,
    Module,
    absolute_import,
    find,
    find_module,
    name_of,
    names_bound_by,
    signature,
)
from pipeline.system.environment import quiet_stderr

HEAVY = frozenset(
    {"tensorflow", "keras", "tensorflow_datasets", "torch", "jax", "mlflow", "sklearn", "scipy", "pandas", "matplotlib"}
)
"""Packages that take seconds to import; settings classes seldom need them."""


def evaluate(expression: ast.expr, module: Module) -> Any:
    """Returns the value of an annotation of `module`, such as the class of a stage's settings.

    Only the statements that the annotation needs are executed, and TensorFlow is imported only where the value needs
    it. Where that fails, the whole module is imported.
    """
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        expression = ast.parse(expression.value, mode="eval").body
    code = compile(ast.Expression(expression), str(module.place), "eval")
    try:
        space = _slice(module, _loaded(expression))
        return _real(eval(code, vars(space)))
    except Exception:  # the whole module has whatever a part lacks
        with quiet_stderr():
            return eval(code, vars(importlib.import_module(module.name)))


def _slice(module: Module, names: set[str]) -> ModuleType:
    """Returns a module in which `names` of `module` are defined, and the names that they need."""
    space = ModuleType(f"settings of {module.name}")
    package = module.name if module.place.name == "__init__.py" else module.name.rpartition(".")[0]
    vars(space).update(__package__=package, __file__=str(module.place))
    sys.modules[space.__name__] = space  # dataclasses look their module up
    postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in module.body)
    flags = __future__.annotations.compiler_flag if postponed else 0
    for statement in _needed(module, names):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            _import(statement, module, space, names)
        else:
            code = compile(ast.Module([statement], []), str(module.place), "exec", flags)
            exec(code, vars(space))
    return space


def _needed(module: Module, names: set[str]) -> list[ast.stmt]:
    """Returns the statements that bind `names`, and those that these need, whose names are added to `names`."""
    chosen: set[int] = set()
    grown = True
    while grown:
        grown = False
        for index, statement in enumerate(module.body):
            if index in chosen or not (names & names_bound_by(statement) or _changes(statement, names)):
                continue
            if isinstance(statement, ast.If) and name_of(statement.test) == "TYPE_CHECKING":
                continue
            chosen.add(index)
            names |= _loaded(statement)
            grown = True
    return [module.body[index] for index in sorted(chosen)]


def _changes(statement: ast.stmt, names: set[str]) -> bool:
    """Returns whether a statement that binds none of `names` may change the object of one."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Delete)):
        targets = statement.targets if isinstance(statement, (ast.Assign, ast.Delete)) else [statement.target]
        return any(_loaded(target) & names for target in targets)
    return bool(_loaded(statement) & names) and not isinstance(statement, ast.AnnAssign)


def _loaded(node: ast.AST) -> set[str]:
    """Returns the names that `node` reads, including those in annotations that are strings."""
    read = [part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    names = {part.id for part in read} - set(vars(builtins))
    for part in ast.walk(node):
        annotation = getattr(part, "annotation", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            names |= _loaded(ast.parse(annotation.value, mode="eval"))
    return names


def _import(statement: ast.Import | ast.ImportFrom, module: Module, space: ModuleType, names: set[str]) -> None:
    """Defines the needed names of an import statement; those of heavy packages are imported at their first use."""
    for alias in statement.names:
        bound = alias.asname or alias.name.partition(".")[0]
        if bound not in names and bound != "*":
            continue
        if isinstance(statement, ast.Import):
            whole = importlib.import_module if alias.asname else __import__
            vars(space)[bound] = _Lazy.unless_light(lambda whole=whole, name=alias.name: whole(name))
            continue
        source = absolute_import(module, statement) or ""
        inner = _users_module(source)
        if (
            inner is not None
            and source not in sys.modules
            and any(alias.name in names_bound_by(node) for node in inner.body)
        ):
            vars(space)[bound] = getattr(_slice(inner, {alias.name}), alias.name)
        else:
            vars(space)[bound] = _Lazy.unless_light(lambda source=source, name=alias.name: _attribute(source, name))


def _users_module(name: str) -> Module | None:
    try:
        module = find_module(name)
    except AbsentError:
        return None
    return module if module is not None and module.is_own else None


def _attribute(module: str, name: str) -> Any:
    imported = importlib.import_module(module)
    return getattr(imported, name) if hasattr(imported, name) else importlib.import_module(f"{module}.{name}")


class _HeavyImport(BaseException):  # passes `except ImportError` and `except Exception` of modules in between
    pass


class _Refusal(MetaPathFinder):
    """Stops an import that reaches a heavy package."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in HEAVY:
            raise _HeavyImport(fullname)
        return None


class _Lazy:
    """A stand-in for an object of a heavy package, which is imported at its first use."""

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

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._loaded()(*arguments, **options)

    def __getitem__(self, key: Any) -> Any:
        return self._loaded()[key]

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._loaded(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._loaded())


def _real(value: Any) -> Any:
    return value._loaded() if type(value) is _Lazy else value


def declared_settings(target: str) -> type | None:
    """Returns the dataclass that the function `target` declares for its parameter `settings`, if it declares one."""
    try:
        definition = find(target)
    except AbsentError:
        return None  # the plan reports it
    call = signature(definition)
    if definition is None or call is None or "settings" not in call.parameters:
        return None
    annotation = call.parameters["settings"].annotation
    return None if annotation is None else as_dataclass(evaluate(annotation, definition.module))


def as_dataclass(annotation: Any) -> type | None:
    """Returns the dataclass in an annotation, which may also allow None; None where there is none."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = parts[0] if len(parts) == 1 else None
    return annotation if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None
