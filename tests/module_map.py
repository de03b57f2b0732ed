"""`python -m tests.module_map`: rewrites the map in docs/how-it-works/architecture.md from docstrings of modules."""

import ast
from pathlib import Path

from tests.conftest import ROOT
from tests.test_architecture import FLOORS

PAGE = ROOT / "docs" / "how-it-works" / "architecture.md"
MARKS = ("<!-- python -m tests.module_map -->", "<!-- end of the map -->")
WIDTH = 30


def summary(path: Path) -> str:
    """Returns the first line of a module's docstring, a whole sentence; empty where it has none."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def entries(path: Path) -> list[str]:
    """Returns the lines for a module, or for a room and the modules in it."""
    if path.suffix == ".py":
        return [f"{path.name:<{WIDTH}}{summary(path)}"]
    modules = sorted(module for module in path.glob("*.py") if module.name != "__init__.py")
    rooms = [f"{path.name + '/':<{WIDTH}}{summary(path / '__init__.py')}".rstrip()]
    return rooms + [f"  {module.name:<{WIDTH - 2}}{summary(module)}" for module in modules]


def module_map() -> str:
    """Returns the map: for each package its floors, the topmost first, with every module in them."""
    lines: list[str] = []
    for package, floors in reversed(FLOORS.items()):
        lines += [f"`{package}/`:", "", "```text"]
        for floor in reversed(floors):
            for name in floor:
                folder = ROOT / package / name
                lines += entries(folder if (folder / "__init__.py").is_file() else folder.with_suffix(".py"))
            lines.append("─" * 8)
        lines[-1:] = ["```", ""]
    return "\n".join(lines)


def updated(page: str) -> str:
    """Returns the text of the page with the map as the code has it now."""
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n\n{module_map()}\n{MARKS[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
