"""A real Spark cluster on this machine: a standalone master and workers, on the loopback address.

For trying out what only executors show: homes, pools, executors that die. Each worker is a process of its own, with a folder of its own
that stands for a machine's disk. ``cluster.json`` in the cluster's folder says what runs; nothing else is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ClusterError
from headrace.runtime.session import check_java

HOST = "127.0.0.1"
START_SECONDS_MAX = 90
STOP_SECONDS_MAX = 20
_DEPLOYED = b"org.apache.spark.deploy."


@dataclass(frozen=True)
class Cluster:
    """A cluster that was started."""

    folder: Path
    port: int
    ui_port: int
    pids: tuple[int, ...]
    """The master's, then the workers'."""
    cores: int
    """Of each worker."""
    memory: str

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self.port}"

    @property
    def page(self) -> str:
        return f"http://{HOST}:{self.ui_port}"

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if _is_ours(pid)]

    def workers_ready(self) -> int:
        """Workers that the master knows."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError, KeyError):
            return 0


def default_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-cluster-{os.getuid()}"


def up(folder: Path, workers: int, cores: int, memory: str, port: int = 7077, ui_port: int = 8080) -> Iterator[Cluster]:
    """Start a cluster; yields it again and again while its workers come, the last time when all are there. Port 0: any free one."""
    check_java()
    _check(folder, memory)
    port, ui_port = _free_port("--port", port), _free_port("--ui-port", ui_port)
    folder.mkdir(parents=True, exist_ok=True)
    pids: list[int] = []
    cluster = Cluster(folder, port, ui_port, (), cores, memory)
    try:
        pids.append(_start(folder, "master", "master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(ui_port)))
        for number in range(workers):
            name = f"worker-{number}"
            sizes = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / name))
            pids.append(_start(folder, name, "worker.Worker", "--host", HOST, "--webui-port", "0", *sizes, cluster.master))
        cluster = Cluster(folder, port, ui_port, tuple(pids), cores, memory)
        _note(cluster)
        deadline = time.monotonic() + START_SECONDS_MAX
        while cluster.workers_ready() < workers:
            if len(cluster.alive()) < len(pids) or time.monotonic() > deadline:
                raise _not_started(cluster, workers)
            yield cluster
            time.sleep(0.2)
    except BaseException:
        down(cluster if cluster.pids else Cluster(folder, port, ui_port, tuple(pids), cores, memory))
        raise
    yield cluster


@contextmanager
def running(folder: Path, workers: int, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """A cluster for as long as a block lasts, on any free ports."""
    *_, cluster = up(folder, workers, cores, memory, port=0, ui_port=0)
    try:
        yield cluster
    finally:
        down(cluster)


def known(folder: Path) -> Cluster | None:
    """The cluster that was started in a folder, if any of it still runs."""
    try:
        body: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
        cluster = Cluster(folder, body["port"], body["ui_port"], tuple(body["pids"]), body["cores"], body["memory"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cluster if cluster.alive() else None


def down(cluster: Cluster) -> None:
    """End every process of the cluster, and with the workers their executors; then remove its folder."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for pid in cluster.alive():
            os.kill(pid, sent)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while cluster.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    shutil.rmtree(cluster.folder, ignore_errors=True)


def _start(folder: Path, name: str, main: str, *arguments: str) -> int:
    from pyspark.find_spark_home import _find_spark_home

    home = _find_spark_home()
    environment = {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
        **os.environ,
    }
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{main}", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return process.pid


def _check(folder: Path, memory: str) -> None:
    if not re.fullmatch(r"\d+[mgMG]", memory):
        raise ClusterError(where="--memory", wanted="a size such as 512m or 2g", found=repr(memory))
    found = known(folder)
    if found is not None:
        hint = "use it, or stop it first: headrace cluster down"
        raise ClusterError(where="cluster up", wanted="no cluster", found=f"one that runs at {found.master}", hint=hint)
    if folder.exists() and any(folder.iterdir()) and not (folder / "cluster.json").exists():
        raise ClusterError(where=str(folder), wanted="an empty folder", found="other files", hint="give another one by --dir")


def _free_port(option: str, port: int) -> int:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((HOST, port))
        except OSError:
            hint = f"give another one by {option}; 0 takes any"
            raise ClusterError(where=option, wanted="a free port", found=f"{port}, which is in use", hint=hint) from None
        return int(taken.getsockname()[1])


def _is_ours(pid: int) -> bool:
    """Whether the process is still what was started; numbers of processes are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    # While a script becomes the JVM that it starts, the command reads as nothing.
    return state not in "ZX" and (not command or _DEPLOYED in command or b"spark-class" in command)


def _note(cluster: Cluster) -> None:
    body = {name: getattr(cluster, name) for name in ("port", "ui_port", "pids", "cores", "memory")}
    (cluster.folder / "cluster.json").write_text(json.dumps(body))


def _not_started(cluster: Cluster, workers: int) -> ClusterError:
    said = ""
    for log in sorted(cluster.folder.glob("*.log")):
        errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line or "Exception" in line]
        said = said or (f"{log.name}: {errors[0]}" if errors else "")
    found = f"{cluster.workers_ready()} of them"
    return ClusterError("the cluster did not start", where="cluster up", wanted=f"{workers} workers", found=found, hint=said[:300])
