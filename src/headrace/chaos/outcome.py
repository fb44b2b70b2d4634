"""The outcome of a fault."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """From good to bad; the last three fail the campaign."""

    SURVIVED = "survived"
    """The query went on, and everything is right."""
    REFUSED = "refused"
    """An error of Headrace's stopped the query; with the damage undone it went on, and everything is right."""
    BARE = "refused, bare"
    """The same, but with an error of Java, Python or the system: nothing is wrong, but the message does not help the user."""
    SKIPPED = "not possible"
    """The machine or the moment does not allow the fault."""
    WRONG = "WRONG"
    """The query went on, and something is lost, doubled or changed."""
    STUCK = "STUCK"
    """With the damage undone the query did not go on."""
    BROKEN = "HARNESS"
    """The campaign itself failed."""

    @property
    def fails(self) -> bool:
        return self in (Outcome.WRONG, Outcome.STUCK, Outcome.BROKEN)


@dataclass(frozen=True)
class Record:
    """One fault of a campaign."""

    seed: int
    number: int
    kind: str
    """The kind in the table, such as ``corrupt manifest``."""
    what: str
    """What exactly was done."""
    outcome: Outcome
    detail: str
    seconds: float
    version: int
    at_s: float = 0.0
    """When, in seconds since the campaign began."""
    recovery_s: float | None = None
    """From the fault until a file that came right after it was delivered, in order."""
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    rebuilt: int = 0
    """Versions that were computed again from the source."""
    missing: int = 0
    """Copies of state that were missing after the last batch."""
    interruptions: int = 0
    """Attempts at a batch that were broken off, because executors were lost or hung."""
