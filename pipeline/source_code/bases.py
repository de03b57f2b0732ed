"""Base classes of the class that a `_target_` names, read from their source."""

import ast

from pipeline.source_code.annotations import HEAVY
from pipeline.source_code.signatures import AbsentError, Definition, absolute_import, find, names_bound_by


def extends(definition: Definition | None, base: str, seen: frozenset[str] = frozenset()) -> bool | None:
    """Returns whether a class extends the class of the import path `base`; None where its source does not show it.

    Bases that cannot be found do not count within the package of `base`: what that imports from elsewhere cannot
    extend a class of its own. Nor do classes of Keras and the like extend one of this project.
    """
    wanted = find(base)
    if definition is None or wanted is None:
        return None
    if path_of(definition) == path_of(wanted):
        return True
    is_same_package = definition.module.name.partition(".")[0] == wanted.module.name.partition(".")[0]
    cannot = definition.module.name.partition(".")[0] in HEAVY and wanted.module.name.startswith("stages.")
    unknown = False if is_same_package or cannot else None
    if not isinstance(definition.node, ast.ClassDef) or path_of(definition) in seen:
        return unknown
    answers = [
        unknown if found is None else extends(found, base, seen | {path_of(definition)})
        for found in (_found(definition, expression) for expression in definition.node.bases)
    ]
    return True if True in answers else None if None in answers else False


def path_of(definition: Definition) -> str:
    """Returns the import path of a definition."""
    return f"{definition.module.name}.{definition.node.name}"


def _found(definition: Definition, expression: ast.expr) -> Definition | None:
    """Returns the class that an expression names in the module of `definition`; None where only its import shows it."""
    module = definition.module
    name = ast.unparse(expression)
    head, _, rest = name.partition(".")
    try:
        if not rest:
            return find(f"{module.name}.{name}")
        bindings = [statement for statement in module.body if head in names_bound_by(statement)]
        source = _module_of(bindings[0], head, definition) if len(bindings) == 1 else None
        return find(f"{source}.{rest}") if source else None
    except AbsentError:
        return None


def _module_of(statement: ast.stmt, name: str, definition: Definition) -> str | None:
    """Returns the import path of the module that an import statement binds to `name`."""
    if isinstance(statement, ast.Import):
        alias = next(part for part in statement.names if (part.asname or part.name.partition(".")[0]) == name)
        return alias.name if alias.asname else name
    if isinstance(statement, ast.ImportFrom):
        alias = next(part for part in statement.names if (part.asname or part.name) == name)
        source = absolute_import(definition.module, statement)
        return f"{source}.{alias.name}" if source else None
    return None
