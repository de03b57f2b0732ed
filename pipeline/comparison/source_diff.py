"""Lines of code that differ between two runs, from the commits and uncommitted changes that they recorded."""

import tempfile
from pathlib import Path

from pipeline.paths import CHECKOUT
from pipeline.provenance.code_state import git
from pipeline.tracking.journal import Journal

COMMIT = "mlflow.source.git.commit"
PATCH = "code/diff.patch"


def source_diff(first: Path, second: Path, repository: Path | None = None) -> str | None:
    """Returns what git shows between the trees of two runs; empty where they are equal.

    None where that cannot be known: a run outside a repository, a commit that this repository does not have, changes
    that were cut or masked when they were recorded.

    Args:
        first, second: the folders of the runs.
        repository: None: that of this project, or for an installed package that of the working directory.
    """
    start = repository or CHECKOUT or Path.cwd()
    objects = git(start, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    top = git(start, "rev-parse", "--show-toplevel")
    if objects is None or top is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        # What is written, an index and trees, is kept out of the user's repository.
        variables = {"GIT_OBJECT_DIRECTORY": scratch, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects.strip()}
        trees = [_tree(Path(top.strip()), folder, Path(scratch), variables) for folder in (first, second)]
        if None in trees:
            return None
        return git(Path(top.strip()), "diff", *map(str, trees), **variables)


def _tree(top: Path, run: Path, scratch: Path, variables: dict[str, str]) -> str | None:
    """Returns the name of the tree that the run was made with: its commit with its uncommitted changes."""
    commit = None
    patch = ""
    for entry in Journal(run).entries:
        if entry.call == "tags":
            commit = entry.arguments["values"].get(COMMIT, commit)
        elif entry.call == "text" and entry.arguments["name"] == PATCH:
            patch = str(entry.arguments["content"])
    if commit is None:
        return None
    variables = {**variables, "GIT_INDEX_FILE": str(scratch / f"index-{run.name}")}
    if git(top, "read-tree", commit, **variables) is None:
        return None
    changes = patch[patch.find("diff --git ") :] if "diff --git " in patch else ""
    if changes:
        file = scratch / f"changes-{run.name}.patch"
        file.write_text(changes)
        if git(top, "apply", "--cached", "--whitespace=nowarn", str(file), **variables) is None:
            return None
    written = git(top, "write-tree", **variables)
    return written.strip() if written else None
