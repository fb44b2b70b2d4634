"""Turns errors of the operating system into `StorageError`, which names the path, the failure and the remedy.

FileExistsError and FileNotFoundError pass through unchanged, because callers handle them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import StorageError
from headrace.logs import logger, suppressed

_log = logger(__name__)

RESTART = "then start the query again: no committed version is lost, and it goes on with this batch"

_FULL = f"free some space, or raise the quota or limit; {RESTART}"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: f"mount the disk so that it can be written; {RESTART}",
    errno.EACCES: f"give the user that runs the query the right to read and write there; {RESTART}",
    errno.EPERM: f"give the user that runs the query the right to read and write there; {RESTART}",
    errno.ENOENT: "a folder of the checkpoint is gone: restore it from a backup, or start with a new checkpointLocation",
    errno.ENOTDIR: "a part of the path is a file: give a path whose parents are all folders",
    errno.EISDIR: "a folder is in the way of a file: remove it, or give another path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "its symbolic links lead in a circle: give another path",
    errno.EMFILE: f"raise the limit of open files (ulimit -n); {RESTART}",
    errno.ENFILE: f"raise the limit of open files of the machine; {RESTART}",
}


@contextlib.contextmanager
def disk_errors(path: Path | str, wanted: str) -> Iterator[None]:
    """Turn an OSError within the block into a StorageError. ``wanted`` says what the block tries to do with the path."""
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as refused:
        raise storage_error(refused, path, wanted) from refused


def storage_error(refused: OSError, path: Path | str, wanted: str) -> StorageError:
    """The StorageError for an OSError; see ``disk_errors``."""
    number = refused.errno or 0
    said = refused.strerror or str(refused) or type(refused).__name__
    hint = _ADVICE.get(number, f"mend the disk; {RESTART}")
    return StorageError(path=str(path), wanted=wanted, found=f"{said} ({errno.errorcode.get(number, 'no error number')})", hint=hint)


def storage_error_in(text: str, place: Path | str) -> StorageError | None:
    """The StorageError for a failure of which only the text is known, such as Spark's. ``place`` is the path if the text has none.

    None if no disk caused the failure, or if it happened in a user's function.

    >>> str(storage_error_in("java.io.IOException: No space left on device\\n at ...", "/data/q"))[:74]
    '/data/q: wanted that Spark can use the disk; found No space left on device'
    """
    if "Traceback (most recent call last)" in text and f"{StorageError.__module__}.{StorageError.__name__}" not in text:
        return None
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG):
        at = text.find(os.strerror(number))
        if at >= 0:
            named = re.findall(r"(/[^\s()]+)[^/\n]{0,40}$", text[max(0, at - 1000) : at].rpartition("\n")[2])
            return storage_error(OSError(number, os.strerror(number)), named[-1] if named else place, "that Spark can use the disk")
    return None


def is_plain_name(name: object) -> bool:
    """True for the name of a file within a folder: nothing that leads elsewhere.

    >>> is_plain_name("v000000000001-op.arrow"), is_plain_name("../x"), is_plain_name(".."), is_plain_name("")
    (True, False, False, False)
    """
    return isinstance(name, str) and bool(name) and name not in (".", "..") and not any(c in name for c in ("/", "\\", "\0"))


def sync_file(path: Path) -> None:
    """Force a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Remove the file if the block fails. A half-written file is useless, and takes up space on a full disk."""
    try:
        yield
    except BaseException:
        with suppressed(_log, f"{path}, which was not written completely, cannot be removed", OSError, level=logging.INFO):
            path.unlink(missing_ok=True)
        raise
