"""The error for a file that is not in the encoding that it should have: what it is instead."""

import codecs
import gzip
import shlex
from contextlib import suppress
from pathlib import Path

from stages.errors import UserError


def not_in_encoding(path: Path, encoding: str) -> UserError:
    """Return the error for bytes that are not text, with the encoding that the file seems to have."""
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    if is_packed and path.suffix != ".gz":
        fix = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.gz')}"
        return UserError(f"{path} is compressed, and its name does not end in .gz", f"data.files={path}.gz", fix)
    with gzip.open(path) if is_packed else path.open("rb") as file:
        content = file.read(2**20)
    is_wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if b"\0" in content and not is_wide:
        return UserError(f"{path} holds no text", "a text file, or a name that ends as files of its kind do")
    for other in ("utf16",) if is_wide else ("utf8", "cp1252", "latin1"):
        with suppress(UnicodeError):
            codecs.getincrementaldecoder(other)().decode(content)  # which may end within a letter
            if codecs.lookup(other) != codecs.lookup(encoding):
                return UserError(f"{path} is not in {encoding}", "one encoding in all files", f"data.encoding={other}")
    return UserError(f"{path} is not in {encoding}", "one encoding in all files", "data.encoding=<encoding>")
