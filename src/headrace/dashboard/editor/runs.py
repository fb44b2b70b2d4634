"""Work for the editor's pages: each in a thread of its own with a deadline, one at a time for each page, and it can be cancelled.

A text is the user's own code, so work may never end. At its deadline, or when it is cancelled, `Work.ended` tells what waits inside,
such as a sample that runs, to stop and clean up. If the thread still runs after `GRACE_S`, it gets an exception (`Cancelled`) at its next
Python instruction. A thread that hangs outside of Python goes on until its call returns; its result is not used. A start or a replacement
is never broken off: what it has begun it ends.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError, QueryError
from headrace.logs import logger

DEADLINE_S = 60.0
GRACE_S = 3.0
BREAKABLE = ("check", "sample")
"""The kinds of work that change nothing, so that they can be cancelled."""
PAGES_MAX = 1_000
"""The numbers of so many pages' checks are remembered."""
CHANGED = "the text has changed since"
_log = logger(__name__)


class Cancelled(BaseException):
    """Raised in a thread whose work is not wanted any more."""


class Work:
    """One piece of work, in a thread that begins at once."""

    def __init__(self, kind: str, run: Callable[[Work], Any], deadline_s: float = DEADLINE_S) -> None:
        self.kind = kind
        self.deadline_s = deadline_s
        self.ended = threading.Event()
        """Set when the result is there, or is not wanted any more."""
        self._run = run
        self._result: Any = None
        self._failed: BaseException | None = None
        self._why = ""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"headrace-editor-{kind}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            result = self._run(self)
            with self._lock:
                self._result = result
        except Cancelled as cancelled:
            _log.debug("a run of the editor was cancelled: %s", cancelled)
        except BaseException as failed:
            # Also SystemExit and KeyboardInterrupt: a text of the user's may raise anything.
            self._failed = failed
        finally:
            self.ended.set()

    @property
    def goes_on(self) -> bool:
        """True if it cannot be broken off and has not ended, although nobody waits for it any more."""
        return bool(self._why) and self.kind not in BREAKABLE and self._thread.is_alive()

    def cancel(self, why: str) -> None:
        """End the work, whatever it does."""
        with self._lock:
            if self.ended.is_set():
                return
            self._why = why
            self.ended.set()
        if self.kind not in BREAKABLE:
            return
        later = threading.Timer(GRACE_S, self._break_off)
        later.daemon = True
        later.start()

    def _break_off(self) -> None:
        thread = self._thread.ident
        if thread is not None and self._thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))

    def result(self) -> Any:
        """Wait for the result. Raises what the work raised, or an error of ours if it was cancelled or took too long."""
        if not self.ended.wait(self.deadline_s):
            self.cancel(f"it took more than {self.deadline_s:g} s" + ("" if self.kind in BREAKABLE else ", and goes on"))
        if self._why:
            raise QueryError(where=self.kind, wanted="an answer", found=self._why)
        if self._failed is None:
            return self._result
        if isinstance(self._failed, HeadraceError):
            raise self._failed
        _log.warning("the editor could not %s", self.kind, exc_info=self._failed)
        raise QueryError(where=self.kind, found=f"{type(self._failed).__name__}: {self._failed}")


class Runs:
    """The work of all pages. A check ends the check before it; everything else waits for nothing and is refused while other work runs.

    Requests may overtake each other on their way. So a page numbers its checks: one that comes behind a later one is not done any more.
    """

    CHECK = "check"

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}
        self._turns: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, page: str, kind: str, run: Callable[[Work], Any], deadline_s: float = DEADLINE_S, turn: int = 0) -> Any:
        """Do work for a page and return its result. ``turn`` is the number of a check."""
        with self._lock:
            if kind == self.CHECK:
                if turn < self._turns.get(page, 0):
                    raise QueryError(where=kind, wanted="an answer", found=CHANGED)
                if len(self._turns) >= PAGES_MAX:
                    self._turns.clear()
                self._turns[page] = turn
            before = self._work.get(page)
            if before is not None and (not before.ended.is_set() or before.goes_on):
                if before.kind != self.CHECK:
                    hint = "wait for it, or cancel it"
                    raise QueryError(where=kind, wanted="one piece of work at a time", found=f"{before.kind} goes on", hint=hint)
                before.cancel(CHANGED)
            work = self._work[page] = Work(kind, run, deadline_s)
        try:
            return work.result()
        finally:
            with self._lock:
                if self._work.get(page) is work and not work.goes_on:
                    del self._work[page]

    def cancel(self, page: str) -> bool:
        """End the work of a page. False if there is none that can be cancelled."""
        with self._lock:
            work = self._work.get(page)
        if work is None or work.ended.is_set() or work.kind not in BREAKABLE:
            return False
        work.cancel("it was cancelled")
        return True

    def stop(self, seconds: float = 5.0) -> None:
        """End all work, and wait a little for it."""
        with self._lock:
            every = list(self._work.values())
        for work in every:
            work.cancel("the monitor ends")
        until_s = time.monotonic() + seconds
        for work in every:
            work._thread.join(max(0.0, until_s - time.monotonic()))
