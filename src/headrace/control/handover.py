"""The protocols by which the state of slots goes to a new owner, and the choice between them.

- *state recreation* (StreamCloud V.A): the new owner has the state before it begins. Missing state is fetched while batches go on with the
  old routing; then the routing switches.
- *window recreation* (StreamCloud V.A): the old owner closes the windows that it has begun, and the new one begins those that follow. No
  state moves, and the change takes as long as a window.
- *merge* (replica groups): the new owner begins at once with empty state, and the old state is merged in when it arrives. Possible only if
  no result depends on the old state before that: windows that are emitted when they close.
- *buffering* (replica groups): for state that cannot be merged, rows wait until it has arrived. A source that can replay serves as the
  buffer: no batch begins meanwhile.

StreamCloud's rule is the default: state recreation, unless fetching would take longer than filling a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.config import HANDOVERS
from headrace.errors import QueryError
from headrace.ids import OperatorId

AUTO = "auto"


class Protocol(StrEnum):
    """The protocols, by the names in ``headrace.config.HANDOVERS``."""

    STATE_RECREATION = "state recreation"
    WINDOW_RECREATION = "window recreation"
    MERGE = "merge"
    BUFFERING = "buffering"


@dataclass(frozen=True)
class Facts:
    """The properties of an operator that the choice depends on."""

    window: tuple[int, int, int] | None = None
    """Size, advance and offset of its time windows in microseconds; None if it has no windows that close."""
    emits_at_once: bool = True
    """True if rows give results before a window closes."""
    reads_others: bool = True
    """True if an instance can read at any time what others wrote. It cannot if new state stays on the executors."""

    @property
    def mergeable(self) -> bool:
        """True if several instances may keep partial state of one key, to be merged when a window closes."""
        return self.window is not None and not self.emits_at_once and self.reads_others

    @property
    def possible(self) -> tuple[Protocol, ...]:
        """The protocols that the operator allows."""
        windows = (Protocol.WINDOW_RECREATION,) if self.window else ()
        merges = (Protocol.MERGE,) if self.mergeable else ()
        return (Protocol.STATE_RECREATION, *windows, *merges, Protocol.BUFFERING)


@dataclass(frozen=True)
class Choice:
    """The protocol for one change, and the reason."""

    protocol: Protocol
    why: str


def choose_protocol(wanted: str, operator: OperatorId, facts: Facts, moving_bytes: int, bytes_per_s: float) -> Choice:
    """Choose the protocol for an operator's slots.

    ``wanted`` is a protocol or ``auto``. ``moving_bytes`` is the state that new owners would have to fetch.

    >>> hour = Facts(window=(3_600_000_000, 60_000_000, 0))
    >>> choose_protocol("auto", "aggregate", hour, 10_000_000, 50e6).why
    'fetching 10.0 MB takes about 0.2 s, less than a window of 3600 s'
    >>> choose_protocol("auto", "aggregate", Facts(window=(1_000_000, 1_000_000, 0)), 500_000_000, 50e6).protocol.value
    'window recreation'
    >>> choose_protocol("merge", "aggregate", Facts(), 0, 50e6)
    Traceback (most recent call last):
    ...
    headrace.errors.QueryError: protocol 'merge': wanted one that aggregate allows: state recreation, buffering, auto; found merge
    """
    if wanted != AUTO:
        if wanted not in facts.possible:
            allowed = ", ".join([*facts.possible, AUTO])
            raise QueryError(where=f"protocol {wanted!r}", wanted=f"one that {operator} allows: {allowed}", found=wanted)
        return Choice(Protocol(wanted), "asked for")
    if not moving_bytes:
        return Choice(Protocol.STATE_RECREATION, "no state has to be fetched")
    takes_s = moving_bytes / bytes_per_s
    fetch_text = f"fetching {moving_bytes / 1e6:.1f} MB takes about {takes_s:.1f} s"
    if facts.window is None:
        return Choice(Protocol.STATE_RECREATION, f"{fetch_text}, and there are no windows to recreate")
    window_s = facts.window[0] / 1e6
    if takes_s > window_s:
        return Choice(Protocol.WINDOW_RECREATION, f"{fetch_text}, more than a window of {window_s:g} s")
    return Choice(Protocol.STATE_RECREATION, f"{fetch_text}, less than a window of {window_s:g} s")


def check_name(where: str, wanted: str) -> None:
    """Refuse a name that is no protocol."""
    if wanted not in HANDOVERS:
        raise QueryError(where=where, wanted=f"one of {', '.join(HANDOVERS)}", found=repr(wanted))
