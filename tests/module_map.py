"""`python -m tests.module_map`: rewrites the map in docs/how-it-works from docstrings of modules."""

import ast
from pathlib import Path

from tests.conftest import ROOT
from tests.test_architecture import FLOORS

PAGES = {package: ROOT / "docs" / "how-it-works" / f"map-of-{package}.md" for package in FLOORS}
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


def module_map(package: str) -> str:
    """Returns the map of a package: its floors, the topmost first, with every module in them."""
    lines: list[str] = []
    for floor in reversed(FLOORS[package]):
        for name in floor:
            folder = ROOT / package / name
            lines += entries(folder if (folder / "__init__.py").is_file() else folder.with_suffix(".py"))
        lines.append("─" * 8)
    return "\n".join(["```text", *lines[:-1], "```", ""])


def updated(package: str) -> str:
    """Returns the page of a package with the map as the code has it now."""
    before, _, rest = PAGES[package].read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n\n{module_map(package)}\n{MARKS[1]}{after}"


if __name__ == "__main__":
    for package, page in PAGES.items():
        page.write_text(updated(package))
