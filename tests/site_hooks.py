"""A hook of MkDocs (mkdocs.yml): code in a text breaks after a separator, and not inside a word or after a hyphen."""

import re
from html import unescape

LONG = 24
"""Number of characters from which a word of code may break; shorter ones fit the narrowest screens."""


def on_page_content(html: str, **_: object) -> str:
    """Return the HTML of a page with the places where code may break and where it may not.

    Blocks of code stay as they are, and so do long words in tables, because both scroll.
    """
    parts = re.split(r"(<pre.*?</pre>|<table.*?</table>)", html, flags=re.DOTALL)
    return "".join(part if part.startswith("<pre") else _code(part, part.startswith("<table")) for part in parts)


def _code(html: str, scrolls: bool) -> str:
    """Return a part of a page with its inline code as it may break."""

    def word(found: re.Match[str]) -> str:
        text = found[0]
        if len(unescape(text)) >= LONG:
            text = text if scrolls else re.sub(r"([./=,:]+)(?=\w)", r"\1<wbr>", text)
            return re.sub(r"^-[\w-]+", r'<span class="whole">\g<0></span>', text)
        return f'<span class="whole">{text}</span>' if "-" in text else text

    return re.sub(r"(?<=<code>)[^<]+(?=</code>)", lambda code: re.sub(r"\S+", word, code[0]), html)
