"""Errors of disks that are full or can no longer be written, which are no defects, as one line for the user."""

import errno
import os

from stages.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def no_room(error: BaseException) -> UserError | None:
    """Returns the user's error for one of a full or a read-only disk; None for any other."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return None
    return UserError(
        f"{error.filename or 'a file'} cannot be written ({os.strerror(error.errno)})",
        "a folder with room in it that can be written to",
        "the same command again, once there is room: it resumes what was interrupted",
    )
