"""Removes files that no version names, while the query runs.

Tasks remove runs that they wrote and merged away themselves. Other files are left over: those of failed or duplicate task attempts, and
runs that contain only closed windows. A file's name tells for which version it was written, and by which start of the query:

    v000000000042-aggregate-i0-e3x1f2a3b4c-a17-run.arrow

Only files of this start of the query and of committed versions are removed. No later manifest can name them: the next version has another
number, and a replay of a committed version writes no files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from headrace.errors import StorageError
from headrace.ids import Version, WriterId
from headrace.logs import logger, suppressed
from headrace.runtime.checkpoint import FOLDERS, Checkpoint

_log = logger(__name__)

EVERY = 64
"""The folders are listed once in this many versions, because listing long folders takes time."""
_NAME = re.compile(r"\.?v(?P<version>\d{12})-.+-e(?P<writer>\d+x[0-9a-f]{8})-a\d+-[^/]+\.(arrow|json|tmp)")


def remove_unnamed(checkpoint: Checkpoint, version: Version, writer: WriterId, files: Iterable[tuple[str, str]]) -> None:
    """Remove those of these (folder, file) pairs that this version wrote itself and that its manifest does not name."""
    named = checkpoint.files_of(version)
    gone = [f"{folder}/{file}" for folder, file in files if (folder, file) not in named and _is_of(file, version, version, writer)]
    if gone:
        _remove(checkpoint, *gone)


def sweep_committed(checkpoint: Checkpoint, version: Version, writer: WriterId) -> int:
    """Remove the files of this start of the query, up to a committed version, that no kept version names. Returns how many."""
    named: set[tuple[str, str]] = set().union(*(checkpoint.files_of(kept) for kept in checkpoint.manifests.versions()))
    removed = 0
    for folder in FOLDERS:
        names = [key.rpartition("/")[2] for key in checkpoint.store.keys(f"{folder}/")]
        unnamed = [name for name in names if (folder, name) not in named and _is_of(name, 0, version, writer)]
        removed += _remove(checkpoint, *(f"{folder}/{name}" for name in unnamed))
    return removed


def _is_of(file: str, first: int, last: int, writer: WriterId) -> bool:
    found = _NAME.fullmatch(file)
    return found is not None and found["writer"] == writer and first <= int(found["version"]) <= last


def _remove(checkpoint: Checkpoint, *keys: str) -> int:
    """Remove objects; returns how many. If that fails, the next sweep, or that of the next start, tries again."""
    with suppressed(_log, f"{len(keys)} files cannot be removed yet", OSError, StorageError, level=logging.INFO):
        checkpoint.store.delete(*keys)
        return len(keys)
    return 0
