"""The processes of the lanes: starts them, asks them, kills them, and starts them again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.demo.lane import LaneSpec
from headrace.errors import HeadraceError
from headrace.logs import logger, suppressed

_log = logger(__name__)

ANSWER_S_MAX = 240.0
LOG_LINES = 12


@dataclass
class Lane:
    """One lane. Its process leads a session of its own, so that a Ctrl-C in the terminal reaches the demo alone."""

    spec: LaneSpec
    log: Path
    _process: subprocess.Popen[str] | None = None
    _answers: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)
    _started: bool = False

    @property
    def name(self) -> str:
        return self.spec.lane

    def start(self) -> None:
        """Start the process; it starts its query by itself."""
        scratch = {"TMPDIR": self.spec.scratch, "SPARK_LOCAL_DIRS": self.spec.scratch, "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.demo.lane", json.dumps(asdict(self.spec))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **scratch, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._answers, self._started = queue.Queue(), False
        threading.Thread(target=_read, args=(self._process, self._answers), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def started(self) -> bool:
        """True when its query runs."""
        if not self._started and not self._answers.empty():
            self._take(0.0)
            self._started = True
        return self._started

    def check_alive(self) -> None:
        """Raise an error if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self._ended()

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Send a request, and wait for the answer."""
        until = time.monotonic() + ANSWER_S_MAX
        while not self.started and time.monotonic() < until:
            self.check_alive()
            time.sleep(0.05)
        self._send({"do": what, **more})
        return self._take(until - time.monotonic())

    def kill(self) -> None:
        """``kill -9`` of the driver: its Python process and its JVM. Spark's workers end when the JVM is gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()
        self._process = None

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def _take(self, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=max(0.01, timeout_s))
        except queue.Empty:
            found = f"none within {ANSWER_S_MAX:.0f} s"
            raise HeadraceError(where=f"demo, {self.name} lane", wanted="an answer", found=found, hint=f"see {self.log}") from None
        if answer is None:
            raise self._ended()
        return answer

    def _close(self) -> None:
        assert self._process is not None
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppressed(_log, "a pipe of the lane was not closed", OSError, level=logging.DEBUG):
                    stream.close()

    def _ended(self) -> HeadraceError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        found = "that it ended; its last words:\n" + "\n".join(lines)
        return HeadraceError(where=f"demo, {self.name} lane", wanted="a running query", found=found, hint=f"see {self.log}")


def _read(process: subprocess.Popen[str], answers: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(json.loads(line))
    except (OSError, ValueError) as ended:
        # The demo has closed the pipe, or the process was killed in the middle of a line.
        _log.debug("the lane says no more: %s", ended)
    answers.put(None)
