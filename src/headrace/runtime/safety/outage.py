"""Lets a batch wait while the checkpoint's folder cannot be reached, and run again when it is back.

    the batch fails, and the folder is away   -> wait until it is back, and run the batch again, as a restart would
    the batch has ended, the folder is away   -> wait before Spark writes its own commit

A batch that runs again gets to the same version: what it has committed is found and only delivered again. What Spark writes to the folder
between two batches cannot wait: if the folder goes away just then, or while the query is idle and rows come, the query ends, and a restart
goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import StorageError
from headrace.ids import Version
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.places import IDENTITY

LOOK_S = 0.1
ATTEMPTS_MAX = 16
"""How often a batch runs again, if the folder goes away again and again."""
_log = logger(__name__)


@dataclass
class Outage:
    """Waits for the folder of one checkpoint."""

    checkpoint: Checkpoint
    seconds_max: float
    """How long a batch may wait in all. 0: never."""
    waited_s: float = 0.0
    """How long batches have waited since ``drain``."""

    def drain(self) -> float:
        """How long batches have waited since the last call."""
        found, self.waited_s = self.waited_s, 0.0
        return found

    def is_away(self) -> bool:
        """True if the folder, or what names its query, cannot be reached. An empty folder in its place counts as away.

        A folder without permission is there: that does not mend itself.
        """
        folder = self.checkpoint.store.local
        try:
            if folder is None:
                return not self.checkpoint.is_there
            os.stat(folder / IDENTITY)
        except StorageError:
            return True
        except PermissionError:
            return False
        except OSError as unreachable:
            _log.debug("the checkpoint's folder cannot be reached: %s", unreachable)
            return True
        return False

    def wait(self, version: Version, gives_up: Callable[[], bool], left_s: float | None = None) -> float:
        """Wait until the folder is back, at most ``left_s``, by default ``seconds_max``. Returns how long that took; 0 if it was there."""
        began_s, limit_s = time.monotonic(), self.seconds_max if left_s is None else left_s
        if limit_s <= 0 or not self.is_away():
            return 0.0
        _log.warning("%s cannot be reached; waiting up to %g s", self.checkpoint.location, limit_s, version=version)
        while (took_s := time.monotonic() - began_s) < limit_s and not gives_up() and self.is_away():
            time.sleep(LOOK_S)
        self.waited_s += took_s
        _log.warning("%s is %s after %.1f s", self.checkpoint.location, "away" if self.is_away() else "back", took_s, version=version)
        return took_s

    def run(self, work: Callable[[], None], version: Version, gives_up: Callable[[], bool]) -> None:
        """Run a batch, again if the folder was away meanwhile and has come back in time."""
        left_s = self.seconds_max
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                work()
                break
            except Exception:
                took_s = self.wait(version, gives_up, left_s)
                left_s -= took_s
                if not took_s or attempt == ATTEMPTS_MAX or gives_up() or self.is_away():
                    raise
        # Spark writes its commit next.
        self.wait(version, gives_up, left_s)
