"""The processes of a standalone Spark cluster: how they are started, and how a running one is recognised."""

from __future__ import annotations

from headrace.spark.gateway import spark_home

_PACKAGE = "org.apache.spark.deploy"
MASTER, WORKER = f"{_PACKAGE}.master.Master", f"{_PACKAGE}.worker.Worker"
"""Main classes of the daemons."""
_SCRIPT = "spark-class"


def daemon_command(daemon: str) -> list[str]:
    """The command that starts a daemon, without its arguments."""
    return [f"{spark_home()}/bin/{_SCRIPT}", daemon]


def is_daemon(command: bytes) -> bool:
    """True if a command line is that of a daemon. For a moment it is that of the start script, before the JVM replaces it."""
    return f"{_PACKAGE}.".encode() in command or _SCRIPT.encode() in command
