"""``kill_at``: kill a user's program at a point of a batch, to test it with its own session and sinks."""

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
"""Exit codes of a program that was killed: Python's, and a shell's."""
SHOWN_CHARACTERS = 2000


def kill_at(command: Sequence[str], at: str, batch: int, *, timeout_s: float = 300.0, cwd: str | Path | None = None) -> None:
    """Run a program until its query comes to a point of a batch, where its driver and its JVM are killed by ``kill -9``.

    - ``command``: the program and its arguments.
    - ``at``: one of the driver's points, the first seven of ``FAIL_POINTS``.
    - ``batch``: the number of the batch, counted from 0.
    - ``timeout_s``: how long the program may take, in seconds.
    - ``cwd``: the folder to run it in.

    Run the program again afterwards and look at what its sinks hold (this needs a program, so it is not run here)::

        kill_at([sys.executable, "my_query.py"], "manifest-after", batch=2)
        subprocess.run([sys.executable, "my_query.py"], check=True)

    Raises ``QueryError`` if the program ends in any other way, or takes too long.
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
            # Processes that the program started may still be running, and must not meet the next program.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        if code in KILLED:
            return
        output.seek(0)
        said = output.read().decode(errors="replace")[-SHOWN_CHARACTERS:]
    ended = f"that it ran for more than {timeout_s:.0f} s" if code is None else f"that it ended with exit code {code}"
    raise QueryError(where=where, wanted=f"the program to come to {at!r} of batch {batch}", found=f"{ended}, saying:\n{said}")
