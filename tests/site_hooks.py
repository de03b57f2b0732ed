"""A hook of MkDocs (mkdocs.yml): long settings and paths in a text break after a separator, not inside a word."""

import re

LONG = 24
"""Number of characters from which a word of code may break; shorter ones fit the narrowest screens."""


def on_page_content(html: str, **_: object) -> str:
    """Return the HTML of a page with the places where long words of code may break.

    Blocks of code and tables stay as they are, because they scroll.
    """
    parts = re.split(r"(<pre.*?</pre>|<table.*?</table>)", html, flags=re.DOTALL)
    return "".join(part if part.startswith(("<pre", "<table")) else _breakable(part) for part in parts)


def _breakable(html: str) -> str:
    return re.sub(r"(?<=<code>)[^<]+(?=</code>)", lambda code: re.sub(rf"\S{{{LONG},}}", _word, code[0]), html)


def _word(word: re.Match[str]) -> str:
    return re.sub(r"([./=,:]+)(?=\w)", r"\1<wbr>", word[0])
