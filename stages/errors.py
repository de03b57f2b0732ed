"""The one error that is meant for users."""

from collections.abc import Collection


class UserError(Exception):
    """A mistake that the user can correct, shown in one line: `problem. Expected …. Try: …`.

    Anything else that is raised is a defect, and shows its traceback.

    Attributes:
        problem: the value, and why it cannot work.
        expected: a text, or the allowed alternatives; may be empty.
        fix: settings to add to the same command, as the shell takes them, so that this error does not come again; may
            be empty. Parts that only the user knows stand as `<…>` or `…`.
    """

    def __init__(self, problem: str, expected: str | Collection[str] = "", fix: str = "") -> None:
        if not isinstance(expected, str):
            expected = ("one of: " if len(expected) > 1 else "") + ", ".join(expected)
        self.problem = _one_line(problem).rstrip(".")
        self.expected = _one_line(expected)
        self.fix = _one_line(fix)
        parts = [self.problem]
        if self.expected:
            parts.append(f"Expected {self.expected}")
        if self.fix:
            parts.append(f"Try: {self.fix}")
        super().__init__(". ".join(parts))

    def within(self, place: str) -> "UserError":
        """Return the same error, prefixed with `place`, such as a job of a sweep."""
        return UserError(f"{place}: {self.problem}", self.expected, self.fix)


LONGEST = 2000
"""Characters of a part: a value of a megabyte is not repeated."""


def _one_line(text: str) -> str:
    """Return `text` in one line that a terminal can show; a long one is cut in its middle."""
    shown = printable(" ".join(text.split("\n")))
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} … {shown[-LONGEST // 2 :]}"


def printable(line: str) -> str:
    """Return `line` with control characters as escapes: a terminal shows those of others' texts, and obeys none."""
    return "".join(part if part.isprintable() else part.encode("unicode_escape").decode() for part in line)


def printable_lines(text: str) -> str:
    """Return `text`, each of its lines `printable`."""
    return "\n".join(map(printable, text.split("\n")))
