"""`python -m tests.module_map`: rewrites the map in docs/how-it-works from docstrings of modules."""

import ast
from pathlib import Path

from tests.conftest import ROOT
from tests.test_architecture import LAYERS

PAGES = {package: ROOT / "docs" / "how-it-works" / f"map-of-{package}.md" for package in LAYERS}
MARKS = ("<!-- python -m tests.module_map -->", "<!-- end of the map -->")
WIDTH = 30


def summary(path: Path) -> str:
    """Return the first line of a module's docstring, which is a whole sentence; empty if it has no docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def entries(path: Path) -> list[str]:
    """Return the lines for a module, or for a folder and the modules in it."""
    if path.suffix == ".py":
        return [f"{path.name:<{WIDTH}}{summary(path)}"]
    modules = sorted(module for module in path.glob("*.py") if module.name != "__init__.py")
    lines = [f"{path.name + '/':<{WIDTH}}{summary(path / '__init__.py')}".rstrip()]
    return lines + [f"  {module.name:<{WIDTH - 2}}{summary(module)}" for module in modules]


def module_map(package: str) -> str:
    """Return the map of a package: its layers, the topmost first, with all their modules."""
    lines: list[str] = []
    for layer in reversed(LAYERS[package]):
        for name in layer:
            folder = ROOT / package / name
            lines += entries(folder if (folder / "__init__.py").is_file() else folder.with_suffix(".py"))
        lines.append("─" * 8)
    return "\n".join(["```text", *lines[:-1], "```", ""])


def updated(package: str) -> str:
    """Return the page of a package with an up-to-date map."""
    before, _, rest = PAGES[package].read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n\n{module_map(package)}\n{MARKS[1]}{after}"


if __name__ == "__main__":
    for package, page in PAGES.items():
        page.write_text(updated(package))
