"""The states of ``applyInPandasWithState``: one value per key, and its timeout."""

from __future__ import annotations

from typing import Any

from headrace.operators.user_state.handle import CallState
from headrace.operators.user_state.shape import GROUP_STATE, Front
from headrace.operators.user_state.stored import OneValue
from headrace.operators.user_state.timers import UserTimers

NEVER = -1
"""Spark's word for no timeout."""


class GroupStates:
    """Gives the user's function a ``GroupState`` for each key, and keeps what it did with it.

    The variable has two columns that the user does not see: if there is a state, and the timeout. As in Spark, a call that neither updates
    nor removes the state nor sets a timeout changes nothing: an old timeout stays.
    """

    def __init__(self, state: CallState, timers: UserTimers | None, front: Front, now_ms: int, watermark_ms: int) -> None:
        self._cells: OneValue = state.one_value(GROUP_STATE)
        self._timers, self._front = timers, front
        self._now_ms, self._watermark_ms = now_ms, watermark_ms
        self._nothing = (None,) * len(self._cells.source.variable.values)

    def of(self, owner: int, timed_out: bool) -> Any:
        """A new ``GroupState`` of the key."""
        exists, _ = self._cells.extras
        value = self._cells.values[owner] if exists[owner] else None
        return self._front.group_state(value, self._now_ms, self._watermark_ms, timed_out)

    def keep(self, owner: int, state: Any) -> None:
        """Keep what the user's function did with the state."""
        value, updated, removed, timeout_ms = self._front.outcome(state)
        exists, timeouts = self._cells.extras
        if not updated and not removed and timeout_ms == NEVER:
            return
        gone = removed and timeout_ms == NEVER
        self._cells.changed.add(owner)
        self._cells.values[owner] = None if gone else self._nothing if value is None else value
        exists[owner] = value is not None
        old = timeouts[owner]
        timeouts[owner] = None if timeout_ms == NEVER else timeout_ms
        if self._timers is not None and old != timeouts[owner]:
            if isinstance(old, int):
                self._timers.delete(owner, old)
            if timeout_ms != NEVER:
                self._timers.register(owner, timeout_ms)

    def keep_timer(self, owner: int) -> None:
        """After a key has timed out: if the user's function left its timeout as it was, it will time out again."""
        timeout_ms = self._cells.extras[1][owner]
        if self._timers is not None and isinstance(timeout_ms, int):
            self._timers.register(owner, timeout_ms)
