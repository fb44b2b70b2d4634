"""Disks that are full or cannot be written: a small disk in memory where mounting is allowed, else a limit on the size of files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from headrace.chaos.faults import NotPossible
from headrace.chaos.processes import session_members
from tests.chaos.rig import Rig

NAMESPACE = "HEADRACE_CHAOS_NAMESPACE"
"""Set once the campaign has its own mounts, which end with it."""
BYTES = 256 << 20
Undo = Callable[[], None]


def enter_namespace() -> None:
    """Run this program again in its own mount namespace, if the system allows it."""
    if NAMESPACE in os.environ:
        return
    command = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    with suppress(OSError):
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            os.environ[NAMESPACE] = "1"
            os.execvp(command[0], [*command, sys.executable, "-m", "tests.chaos", *sys.argv[1:]])


def mount(path: Path) -> bool:
    """Mount a small disk for a checkpoint. Returns True if that was possible."""
    if NAMESPACE not in os.environ:
        return False
    path.mkdir(parents=True, exist_ok=True)
    return _mount("-t", "tmpfs", "-o", f"size={BYTES}", "headrace-chaos", str(path))


def unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def _mount(*options: str) -> bool:
    return subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0


def fill(rig: Rig, random: Random) -> tuple[str, Undo]:
    """No room is left, or next to none, while the query runs."""
    rest = random.choice((0, 1 << 12, 1 << 16, 1 << 18))
    if not os.path.ismount(rig.checkpoint):
        return _limit_files(rig, max(rest, 1 << 12))
    ballast = rig.checkpoint / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 20))
    free = os.statvfs(rig.checkpoint)
    os.truncate(ballast, max(0, ballast.stat().st_size - max(0, rest - free.f_bavail * free.f_frsize)))
    rig.feed(2)
    return f"{rest} bytes left", lambda: ballast.unlink(missing_ok=True)


def _limit_files(rig: Rig, most: int) -> tuple[str, Undo]:
    """No process of the query can write a file beyond a size."""
    life = rig.alive

    def limit(size: int) -> None:
        for pid in session_members(life.process.pid):
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    limit(most)
    rig.feed(2)
    return f"files of at most {most} bytes", lambda: limit(resource.RLIM_INFINITY)


def read_only(rig: Rig, random: Random) -> tuple[str, Undo]:
    """The disk can only be read when the query starts."""
    if not os.path.ismount(rig.checkpoint):
        raise NotPossible("mounting is not allowed here")
    rig.stop()
    # Files that were removed and are still mapped by a worker keep a disk writable.
    rig.kill()
    if not _mount("-o", "remount,ro", str(rig.checkpoint)):
        raise NotPossible("somebody still writes to the disk")
    rig.feed(1)

    def writable() -> None:
        _mount("-o", "remount,rw", str(rig.checkpoint))

    return "at the start", writable
