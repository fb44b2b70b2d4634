"""Kills a program of yours at a chosen point of a batch, to test it with its own session and sinks."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.api.origin import user_line
from headrace.errors import QueryError
from headrace.runtime.failpoints import DRIVER_POINTS, VARIABLE

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a program that was killed: Python's, and that of a shell."""
SHOWN_CHARACTERS = 2000


def kill_at(command: Sequence[str], at: str, batch: int, *, timeout_s: float = 300.0, cwd: str | Path | None = None) -> None:
    """Run a program until a batch of its query reaches a point. There its driver and its JVM are killed by ``kill -9``.

    ``at`` is one of the driver's points, the first seven of ``FAIL_POINTS``. Run the program again and look at what its sinks hold:

        kill_at([sys.executable, "my_query.py"], "manifest-after", batch=2)
        subprocess.run([sys.executable, "my_query.py"], check=True)

    It is an error if the program ends in any other way, or takes longer than ``timeout_s``.
    """
    where = user_line("kill_at")
    if at not in DRIVER_POINTS:
        raise QueryError(where=where, wanted=f"a point of the driver: {', '.join(DRIVER_POINTS)}", found=repr(at))
    environment = {**os.environ, VARIABLE: f"{at}@{batch}"}
    with tempfile.TemporaryFile() as output:
        program = subprocess.Popen(
            list(command), cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code: int | None = program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Processes that the program has started may still be ending. They must not disturb the next start.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        if code in KILLED:
            return
        output.seek(0)
        said = output.read().decode(errors="replace")[-SHOWN_CHARACTERS:]
    ended = f"that it ran for more than {timeout_s:.0f} s" if code is None else f"that it ended with exit code {code}"
    raise QueryError(where=where, wanted=f"the program to come to {at!r} of batch {batch}", found=f"{ended}, saying:\n{said}")
