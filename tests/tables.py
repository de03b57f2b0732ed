"""`python -m tests.tables`: rewrites the tables of README.md and docs/ that are generated from the code and conf/.

Each stands between `<!-- name:begin -->` and `<!-- name:end -->`.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.checks.combinations import REFUSED
from pipeline.config.names import read_options
from pipeline.paths import CONF


def refused() -> str:
    """Return the table of refused combinations of settings: why, and what to type instead."""
    rows = ["| combination | why | try |", "|---|---|---|"]
    for rule in REFUSED:
        rows.append(f"| {_typed(rule.combination)} | {_linked(rule.why)} | {_typed(rule.fix)} |")
    return "\n".join(rows)


def groups() -> str:
    """Return the table of the groups of conf/."""
    options = read_options([CONF])
    rows = ["| group | decides | default |", "|---|---|---|"]
    for group in options.groups:
        default = options.defaults.get(group)
        rows.append(f"| `{group}` | {options.about[group]} | {f'`{default}`' if default else ''} |")
    return "\n".join(rows)


def options() -> str:
    """Return the table of the options of conf/, with the first lines of their files."""
    choices = read_options([CONF])
    rows = ["| option | description |", "|---|---|"]
    for group, names in choices.groups.items():
        for name in names:
            default = " (default)" if choices.defaults.get(group) == name else ""
            text = _description(CONF / group / f"{name}.yaml").rstrip(".")
            rows.append(f"| `{group}={name}`{default} | {text} |")
    return "\n".join(rows)


def _description(path: Path) -> str:
    """Return the first comment line of an option's file, other than Hydra's `@package`."""
    lines = [line.strip("# \n") for line in path.read_text().splitlines() if line.startswith("#")]
    return next((line for line in lines if not line.startswith("@")), "")


def _typed(template: str) -> str:
    """Return a text with settings as code, and `<name>` for values to be filled in."""
    return re.sub(r"[\w.]+[=>][^\s]+|\b[a-z]+\.[a-z_]+", r"`\g<0>`", template)


def _linked(reason: str) -> str:
    """Return a reason with the issues that it names as links."""
    return re.sub(r"github\.com/(\w+)-team/(\w+)/issues/(\d+)", r"[\2#\3](https://\g<0>)", reason)


TABLES: Mapping[str, Callable[[], str]] = {"refused": refused, "groups": groups, "options": options}
"""From the name of each table to the function that generates it."""


def updated(text: str) -> str:
    """Return a page with its generated tables as they are now."""
    for name, table in TABLES.items():
        for begin in re.findall(rf"<!-- {name}:begin[^>]*-->\n", text):
            before, _, after = text.partition(begin)
            end = f"<!-- {name}:end -->"
            text = f"{before}{begin}\n{table()}\n\n{end}{after.partition(end)[2]}"
    return text


def main() -> None:
    """Rewrite the pages that have changed, and print their names."""
    root = CONF.parent
    for page in (root / "README.md", *sorted((root / "docs").glob("**/*.md"))):
        text = page.read_text()
        if updated(text) != text:
            page.write_text(updated(text))
            print(page.relative_to(root))


if __name__ == "__main__":
    main()
