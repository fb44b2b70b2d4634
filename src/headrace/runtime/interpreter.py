"""Makes sure that Spark's Python workers run an interpreter that has Headrace.

PySpark's workers run ``PYSPARK_PYTHON``, or else the first ``python3`` on the PATH. If that is not the program's interpreter, a query may
fail in its first batch, inside a Spark task. So workers on this machine get the program's own interpreter, unless the user chose one. Any
other interpreter is asked for its version of Headrace before a query starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pyspark import SparkContext

from headrace.errors import SessionError
from headrace.spark.gateway import REFUSALS, first_line, log_level, printed

DEFAULT = "python3"
PROBE_SECONDS_MAX = 120
ASKED_MAX = 16
"""On a cluster, at most this many workers are asked."""

_PROBE = "import headrace.runtime.task; print(headrace.__version__)"
_known: set[tuple[str, str]] = set()
"""(application, interpreter) pairs that have passed the check."""


def use_own_interpreter(context: SparkContext) -> None:
    """Let workers on this machine run the program's interpreter, unless the user chose another one."""
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python") is not None
    if context.pythonExec == DEFAULT and not chosen and _is_here(str(context.master)):
        context.pythonExec = sys.executable


def check_workers(context: SparkContext) -> None:
    """Refuse workers that lack Headrace or have another version of it. Each application is checked once."""
    use_own_interpreter(context)
    version = str(sys.modules["headrace"].__version__)
    known = (str(context.applicationId), str(context.pythonExec))
    if known in _known:
        return
    if _is_here(str(context.master)):
        found = {} if shutil.which(context.pythonExec) == sys.executable else {context.pythonExec: _asked_here(context)}
    else:
        found = _asked_there(context)
    wrong = {python: answer for python, answer in found.items() if answer != version}
    if wrong:
        python, answer = next(iter(wrong.items()))
        raise SessionError(
            "Spark's workers run a Python that cannot run this query",
            where="session",
            wanted=f"headrace {version} in the Python of the workers, as in {sys.executable}",
            found=f"{python}: {answer}",
            hint="install headrace there, or set PYSPARK_PYTHON, before Spark starts, to an interpreter that has it",
        )
    _known.add(known)


def _is_here(master: str) -> bool:
    """True if all workers run on this machine and see its files."""
    return master.startswith(("local", "spark://127.", "spark://localhost:"))


def _asked_here(context: SparkContext) -> str:
    """The version of Headrace in the workers' interpreter on this machine, or why it has none."""
    command = [context.pythonExec, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS_MAX, env={**os.environ, **context.environment}, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return str(failed)
    return done.stdout.strip() if done.returncode == 0 else _last_line(done.stderr.splitlines())


def _asked_there(context: SparkContext) -> dict[str, str]:
    """The version of Headrace in workers on other machines, by interpreter and machine."""
    workers = min(max(1, context.defaultParallelism), ASKED_MAX)
    try:
        return dict(_quietly(context, lambda: context.parallelize(range(workers), workers).map(_question()).collect()))
    except REFUSALS as failed:
        said = [line.strip() for line in printed(failed).splitlines() if not line.strip().startswith("at ")]
        causes = [line for line in said if "Error" in line or "error" in line or "MISMATCH" in line]
        return {str(context.pythonExec): _last_line(causes) if causes else first_line(failed)}


def _question() -> Callable[[int], tuple[str, str]]:
    """The function that workers run. As a nested function it is pickled by value, so workers need not have this module."""

    def answer(_: int) -> tuple[str, str]:
        import socket
        import sys

        try:
            import headrace.runtime.task

            found = headrace.__version__
        except Exception as failed:
            found = f"{type(failed).__name__}: {failed}"
        return f"{sys.executable} on {socket.gethostname()}", found

    return answer


def _quietly(context: SparkContext, call: Callable[[], Any]) -> Any:
    """Run a Spark job without Spark's log messages, because a failure is reported in one sentence."""
    level = log_level(context)
    context.setLogLevel("OFF")
    try:
        return call()
    finally:
        context.setLogLevel(level)


def _last_line(lines: Iterable[str]) -> str:
    return next((line.strip() for line in reversed(list(lines)) if line.strip()), "nothing")
