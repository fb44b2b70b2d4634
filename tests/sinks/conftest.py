"""A PostgreSQL server of its own for these tests, from Debian's package ``postgresql``. Without it they are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
USER = "postgres"


def why_not() -> str | None:
    """Why there can be no server here; None if there can."""
    if not PROGRAMS:
        return "no PostgreSQL here: on Debian, apt-get install postgresql"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root, and runuser is not there"
    return None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database. The server listens on a socket in a folder of its own, and on no port."""
    if (why := why_not()) is not None:
        pytest.skip(why)
    # Not below pytest's own folder, which the server's user may not enter, and whose path is too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    run = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
    if run:
        shutil.chown(folder, USER)
    programs = PROGRAMS[-1].parent

    def call(*command: Any) -> None:
        done = subprocess.run([*run, *map(str, command)], capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr

    data = folder / "data"
    call(programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8")
    call(programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "start")
    try:
        yield f"host={folder} user={USER} dbname=postgres"
    finally:
        call(programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder)
