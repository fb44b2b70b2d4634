"""A program in a process of its own that executes commands, one line of JSON each, and the other end of that conversation."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.chaos.processes import die_with, kill_session
from headrace.errors import HeadraceError

ANSWER_S_MAX = 300.0
BRIEF_CHARACTERS = 300


class Refused(Exception):
    """The program answered with an error."""

    def __init__(self, kind: str, text: str, ours: bool) -> None:
        super().__init__(text)
        self.kind, self.text, self.ours = kind, text, ours

    def brief(self) -> str:
        """One line for the log."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return f"{self.kind}: {' '.join(lines)[:BRIEF_CHARACTERS]}"


class Died(Exception):
    """The program has ended, or does not answer."""


class Life:
    """A running program: the process, and its answers."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path | None = None) -> None:
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self.process.poll() is not None

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError) as gone:
            raise Died(f"no program to tell {do!r}") from gone

    def answer(self, seconds: float = ANSWER_S_MAX) -> Any:
        """The answer of the program to the last command."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise Died(f"no answer within {seconds:.0f} s") from None
        if not line:
            raise Died("the program is gone")
        said = json.loads(line)
        if "error" in said:
            raise Refused(said["kind"], said["error"], said["ours"])
        return said["result"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer."""
        self.tell(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        """kill -9 of the driver, its JVM, its executors and its workers."""
        kill_session(self.process)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                # Closing flushes, and nobody reads any more.
                try:
                    pipe.close()
                except OSError:
                    continue


def answer(program: Any, line: str) -> dict[str, Any]:
    """Execute one command: a method of the program. Returns what it returned, or its error."""
    request = json.loads(line)
    try:
        return {"result": getattr(program, request.pop("do"))(**request)}
    except HeadraceError as error:
        return {"error": str(error), "kind": type(error).__name__, "ours": True}
    except BaseException as error:
        return {"error": str(error), "kind": type(error).__name__, "ours": False}


def serve(make: Callable[[], Any]) -> None:
    """The program's side: make it, then execute the commands on standard input until that ends. It dies with its parent."""
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    # The JVM writes to standard output too; answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        program: Any = make()
        said: dict[str, Any] = {"result": "ready"}
    except HeadraceError as error:
        program, said = None, {"error": str(error), "kind": type(error).__name__, "ours": True}
    print(json.dumps(said), file=answers, flush=True)
    if program is not None:
        for line in sys.stdin:
            print(json.dumps(answer(program, line)), file=answers, flush=True)
