"""Processes: which belong to a program, which is an executor, and how they are ended or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")


def session_members(leader: int) -> list[int]:
    """Live processes of a session; a child that is dead but not yet waited for does not count."""
    found = []
    for path in _PROCESSES.iterdir():
        if not path.name.isdigit():
            continue
        try:
            state, _, _, session = (path / "stat").read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(path.name))
    return found


def parent_of(pid: int) -> int:
    """The process that started this one."""
    return int((_PROCESSES / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])


def ancestors(pid: int) -> list[int]:
    """The processes that started this one, nearest first."""
    found: list[int] = []
    while pid > 1:
        try:
            pid = parent_of(pid)
        except (OSError, ValueError, IndexError):
            break
        found.append(pid)
    return found


def is_gone(pid: int) -> bool:
    """True if a process has ended, even if its parent has not noticed."""
    try:
        return (_PROCESSES / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def pid_of(executor: str, app: str) -> int:
    """The process of an executor on this machine; raises ProcessLookupError if there is none.

    Two programs that start in the same second may have the same application id, so descendants of this process come first.
    """
    found = []
    for path in _PROCESSES.iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--executor-id" in words and app.encode() in words and words[words.index(b"--executor-id") + 1] == executor.encode():
                found.append(int(path.name))
    if not found:
        raise ProcessLookupError(executor)
    return max(found, key=lambda pid: os.getpid() in ancestors(pid))


def send(pids: Iterable[int], number: int) -> int:
    """Send a signal to processes. Returns how many of them were there."""
    sent = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent


def kill_session(process: subprocess.Popen[bytes], spare: tuple[int, ...] = ()) -> None:
    """kill -9 of a program, its JVM, its executors and its workers, all at once."""
    while members := [pid for pid in session_members(process.pid) if pid not in spare]:
        send(members, signal.SIGKILL)
        time.sleep(0.01)
    process.wait(10)


def die_with(parent: int) -> None:
    """End together with the parent: if that is killed, no program may stay behind and wait for it."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
