"""The error for a file that does not have the expected encoding."""

import codecs
import gzip
import shlex
from contextlib import suppress
from pathlib import Path

from stages.errors import UserError

WIDE = {
    codecs.BOM_UTF32_LE: "utf32", codecs.BOM_UTF32_BE: "utf32",
    codecs.BOM_UTF16_LE: "utf16", codecs.BOM_UTF16_BE: "utf16",
}  # fmt: skip
"""Encodings by their byte order marks. UTF-32 comes first, because its mark begins with that of UTF-16."""


def _without_mark(content: bytes) -> str:
    """Return the variant of UTF-16 of a mostly Latin text without a byte order mark; empty if it is not UTF-16."""
    for name, zeros, others in (("utf-16-le", content[1::2], content[::2]), ("utf-16-be", content[::2], content[1::2])):
        if 2 * zeros.count(0) > len(zeros) and not others.count(0):
            return name
    return ""


def not_in_encoding(path: Path, encoding: str) -> UserError:
    """Return the error for a file that cannot be decoded, with the encoding that it seems to have."""
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    if is_packed and path.suffix != ".gz":
        fix = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.gz')}"
        return UserError(f"{path} is compressed, but its name does not end in .gz", "a name that ends in .gz", fix)
    with gzip.open(path) if is_packed else path.open("rb") as file:
        content = file.read(2**20)
    wide = next((name for mark, name in WIDE.items() if content.startswith(mark)), _without_mark(content))
    if b"\0" in content and not wide:
        return UserError(f"{path} is not a text file", "a text file, or the usual file name extension for its format")
    for other in (wide,) if wide else ("utf8", "cp1252", "latin1"):
        with suppress(UnicodeError):
            codecs.getincrementaldecoder(other)().decode(content)  # the content may end within a letter
            if codecs.lookup(other) != codecs.lookup(encoding):
                return UserError(
                    f"{path} is not encoded in {encoding}", "the same encoding in all files", f"data.encoding={other}"
                )
    return UserError(
        f"{path} is not encoded in {encoding}", "the same encoding in all files", "data.encoding=<encoding>"
    )
