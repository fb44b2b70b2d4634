"""A folder of this machine for what belongs to one query and to one user: its lock, and the address of its control endpoint.

A checkpoint in a folder has both in that folder. One in an object store or in HDFS cannot have a lock, and its readers shall not learn the
token by which the query is controlled. So there the two are in a folder of the user's in the directory for temporary files, under a name
that follows from the checkpoint's address.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from headrace.errors import CheckpointError
from headrace.state.disk import disk_errors


def private_folder(address: str) -> Path:
    """The folder for a checkpoint, which is created if need be. Refuses one that somebody else could have made or can write to."""
    base = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    folder = base / hashlib.sha256(address.encode()).hexdigest()[:16]
    with disk_errors(base, "a folder for the query's lock and its control endpoint"):
        for each in (base, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            about = os.lstat(each)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                raise CheckpointError(
                    where=str(each),
                    wanted="a folder of this user that nobody else can write to",
                    found=f"one of user {about.st_uid}, mode {stat.S_IMODE(about.st_mode):o}",
                    hint="remove it, or set TMPDIR to a directory of your own",
                )
    return folder
