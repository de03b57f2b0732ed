"""Names of files and classes as texts: a file system allows bytes that are no UTF-8."""


def is_utf8(text: str) -> bool:
    """Returns whether a text, such as the name of a file, can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name of other bytes
        return False
    return True


def printable(text: str) -> str:
    """Returns a text with the bytes of a file name that are not UTF-8 as escapes, such as `caf\\xe9.png`."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
