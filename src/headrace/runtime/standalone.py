"""A real Spark cluster on this machine: a standalone master and workers, on the loopback address.

It is for trying out what needs executors: homes, pools, executors that die. Each worker is a process with a folder of its own, which stands
for a machine's disk. ``cluster.json`` in the cluster's folder records the processes.

The folder may be in a directory for temporary files, where everybody can write. So it must be a real folder (no link) that belongs to the
user and that nobody else can write to. A process is signalled only if it is the user's, began when the file says, and is a part of Spark.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import ClusterError
from headrace.runtime.session import check_java
from headrace.spark.daemons import MASTER, WORKER, daemon_command, is_daemon
from headrace.spark.gateway import spark_home

HOST = "127.0.0.1"
NOTE = "cluster.json"
START_SECONDS_MAX = 90
STOP_SECONDS_MAX = 20


@dataclass(frozen=True)
class Cluster:
    """A cluster that was started."""

    folder: Path
    port: int
    ui_port: int
    pids: tuple[int, ...]
    """The process ids: the master's, then the workers'."""
    began: tuple[int, ...]
    """When each process began, in the kernel's ticks. It identifies a process, because the kernel uses ids again."""
    cores: int
    """Cores of each worker."""
    memory: str

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self.port}"

    @property
    def page(self) -> str:
        return f"http://{HOST}:{self.ui_port}"

    def alive(self) -> list[int]:
        return [pid for pid, began in zip(self.pids, self.began, strict=True) if _is_ours(pid, began)]

    @property
    def down_command(self) -> str:
        """The shell command that stops the cluster."""
        return _command("down", self.folder)

    def workers_ready(self) -> int:
        """The number of workers that the master knows."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError, KeyError):
            return 0


def default_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-cluster-{os.getuid()}"


def up(folder: Path, workers: int, cores: int, memory: str, port: int = 7077, ui_port: int = 8080) -> Iterator[Cluster]:
    """Start a cluster. Yields it repeatedly while its workers start, the last time when all have. Port 0 means any free port."""
    check_java()
    _check(folder, memory)
    port, ui_port = _free_port("--port", port), _free_port("--ui-port", ui_port)
    _make_folder(folder)
    pids: list[int] = []
    cluster = Cluster(folder, port, ui_port, (), (), cores, memory)
    try:
        pids.append(_start(folder, "master", MASTER, "--host", HOST, "--port", str(port), "--webui-port", str(ui_port)))
        for number in range(workers):
            name = f"worker-{number}"
            sizes = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / name))
            pids.append(_start(folder, name, WORKER, "--host", HOST, "--webui-port", "0", *sizes, cluster.master))
        cluster = _noted(cluster, pids)
        deadline = time.monotonic() + START_SECONDS_MAX
        while cluster.workers_ready() < workers:
            if len(cluster.alive()) < len(pids) or time.monotonic() > deadline:
                raise _not_started(cluster, workers)
            yield cluster
            time.sleep(0.2)
    except BaseException:
        down(cluster if cluster.pids else replace(cluster, pids=tuple(pids), began=tuple(_began(pid) for pid in pids)))
        raise
    yield cluster


@contextmanager
def running(folder: Path, workers: int, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """A cluster that runs for as long as the block, on any free ports."""
    *_, cluster = up(folder, workers, cores, memory, port=0, ui_port=0)
    try:
        yield cluster
    finally:
        down(cluster)


def known(folder: Path) -> Cluster | None:
    """The cluster that was started in a folder, if any of its processes still runs; else None."""
    if not os.path.lexists(folder):
        return None
    _check_folder(folder)
    try:
        with open(os.open(folder / NOTE, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            body: dict[str, Any] = json.load(file)
        pids, began = tuple(body["pids"]), tuple(body["began"])
        cluster = Cluster(folder, int(body["port"]), int(body["ui_port"]), pids, began, int(body["cores"]), str(body["memory"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = len(pids) == len(began) and all(type(each) is int and each > 1 for each in (*pids, *began))
    return cluster if numbers and cluster.alive() else None


def down(cluster: Cluster) -> None:
    """End every process of the cluster, executors included, and remove its folder."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for pid in cluster.alive():
            os.kill(pid, sent)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while cluster.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    shutil.rmtree(cluster.folder, ignore_errors=True)


def _start(folder: Path, name: str, daemon: str, *arguments: str) -> int:
    environment = {
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
        **os.environ,
    }
    with open(_new_file(folder / f"{name}.log"), "wb") as log:
        process = subprocess.Popen(
            [*daemon_command(daemon), *arguments],
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
        hint = f"use it, or stop it first: {found.down_command}"
        raise ClusterError(where="cluster up", wanted="no cluster", found=f"one that runs at {found.master}", hint=hint)
    if folder.exists() and any(folder.iterdir()) and not (folder / NOTE).exists():
        raise ClusterError(where=str(folder), wanted="an empty folder", found="other files", hint="give another one by --dir")


def up_command(folder: Path) -> str:
    return _command("up", folder)


def _command(what: str, folder: Path) -> str:
    return f"headrace cluster {what}" if folder == default_folder() else f"headrace cluster {what} --dir {shlex.quote(str(folder))}"


def _make_folder(folder: Path) -> None:
    """Create the folder so that only the user can write to it. An existing folder must be like that already."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        _check_folder(folder)
    except OSError as refused:
        raise ClusterError(where=str(folder), wanted="a folder for the cluster", found=str(refused), hint="give another --dir") from None


def _check_folder(folder: Path) -> None:
    """Refuse a folder that another user may have created, or can write to."""
    about = folder.lstat()
    if stat.S_ISLNK(about.st_mode):
        found = "a symbolic link"
    elif not stat.S_ISDIR(about.st_mode):
        found = "no folder"
    elif about.st_uid != os.getuid():
        found = f"a folder that belongs to user {about.st_uid}"
    elif about.st_mode & 0o022:
        found = f"a folder that others can write to (mode {stat.S_IMODE(about.st_mode):o})"
    else:
        return
    wanted = "a folder of your own, which nobody else can write to"
    raise ClusterError(where=str(folder), wanted=wanted, found=found, hint="give another one by --dir")


def _new_file(path: Path) -> int:
    """Replace a file by a new one of the user, and open it for writing."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _free_port(option: str, port: int) -> int:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((HOST, port))
        except OSError:
            hint = f"give another one by {option}; 0 takes any"
            raise ClusterError(where=option, wanted="a free port", found=f"{port}, which is in use", hint=hint) from None
        return int(taken.getsockname()[1])


def _is_ours(pid: int, began: int) -> bool:
    """True if the process is still the one that was started."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid() or _began(pid) != began or _stat(pid)[0] in "ZX":
            return False
    except (OSError, IndexError):
        return False
    # The command is empty for a moment while the start script is replaced by the JVM.
    return not command or is_daemon(command)


def _stat(pid: int) -> list[str]:
    """The fields of a process's stat file after the command name, which may contain any characters."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _began(pid: int) -> int:
    """When a process began, in ticks since the machine was booted; 0 if it has ended."""
    try:
        return int(_stat(pid)[19])
    except (OSError, IndexError):
        return 0


def _noted(cluster: Cluster, pids: list[int]) -> Cluster:
    """Write the cluster with these processes to its file, and return it."""
    cluster = replace(cluster, pids=tuple(pids), began=tuple(_began(pid) for pid in pids))
    body = {name: getattr(cluster, name) for name in ("port", "ui_port", "pids", "began", "cores", "memory")}
    with open(_new_file(cluster.folder / NOTE), "w") as file:
        json.dump(body, file)
    return cluster


def _not_started(cluster: Cluster, workers: int) -> ClusterError:
    said = ""
    for log in sorted(cluster.folder.glob("*.log")):
        errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line or "Exception" in line]
        said = said or (f"{log.name}: {errors[0]}" if errors else "")
    found = f"{cluster.workers_ready()} of them"
    return ClusterError("the cluster did not start", where="cluster up", wanted=f"{workers} workers", found=found, hint=said[:300])
