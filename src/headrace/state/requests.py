"""Requests to a store behind a network: tried again with growing pauses, and errors that say what is wrong, without credentials.

A request that failed may have been done. So whoever creates an object exclusively, and is told at a later try that it exists, compares:
what a writer of ours creates carries its id, so an object with the same bytes is its own.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.errors import StorageError
from headrace.logs import logger
from headrace.state.disk import RESTART

TRIES = 6
PAUSE_S = 0.1
PAUSE_S_MAX = 5.0
SAID_MAX = 300
"""How much of a library's error is shown."""
SECRET = re.compile(r"key|secret|token|password|credential|sas", re.IGNORECASE)
"""Names of settings whose values are never shown."""
_QUERY = re.compile(r"\?[^\s\"')]*")
_log = logger(__name__)
Answer = TypeVar("Answer")


class PassingError(Exception):
    """A request failed in a way that may mend itself: no connection, no answer in time, a server that is busy or broken."""


@dataclass(frozen=True)
class Settings:
    """How to reach stores: Hadoop's settings by name, as Spark has them. Values may be secret, so they are never printed."""

    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    request_s: float = 30.0
    """How long one request may take."""

    def get(self, *names: str) -> str | None:
        """The value of the first of these settings that is given."""
        given = dict(self.values)
        return next((given[name] for name in names if given.get(name)), None)

    def shown(self, text: str) -> str:
        """Text of a library without the values of secret settings, and without the queries of addresses, which may be signed."""
        for name, value in self.values:
            if SECRET.search(name) and len(value) > 3:
                text = text.replace(value, "***")
        text = " ".join(_QUERY.sub("", text).split())
        return text if len(text) <= SAID_MAX else text[:SAID_MAX] + "..."


def tried(call: Callable[[], Answer], where: str, wanted: str, settings: Settings) -> Answer:
    """Make a request, and again after a `PassingError`. At the end that becomes a `StorageError`."""
    for number in range(1, TRIES + 1):
        try:
            return call()
        except PassingError as failed:
            said = settings.shown(str(failed))
            if number == TRIES:
                hint = f"see whether the store can be reached from this machine, and whether it limits requests; {RESTART}"
                raise StorageError(path=where, wanted=wanted, found=f"{said} ({TRIES} tries)", hint=hint) from None
            # Many tasks that failed together do not come again together.
            pause_s = min(PAUSE_S * 2 ** (number - 1), PAUSE_S_MAX) * random.uniform(0.5, 1.5)
            _log.info("%s: %s; trying again in %.1f s", where, said, pause_s)
            time.sleep(pause_s)
    raise AssertionError


def refused(said: str, where: str, wanted: str, hint: str) -> StorageError:
    """The error for a request that the store refuses, however often it is made."""
    return StorageError(path=where, wanted=wanted, found=said, hint=f"{hint}; {RESTART}")
