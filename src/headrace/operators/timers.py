"""The timers of one instance during one call: those that are due, those that the user sets and deletes, and which fires next.

A timer is an owner and a moment. An owner is the number of a key in the `InstanceState` of the call. Setting a timer twice sets it once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.errors import ProcessorError
from headrace.operators.shape import ProcessorShape
from headrace.state.keys import Mask
from headrace.state.layout import Indices

Pairs = tuple[Indices, Indices]
"""Owners and moments, in microseconds."""


class Timers:
    """Keeps changes in the order in which they were made. The last change of a timer counts."""

    def __init__(self, due: Pairs, until_us: int, owners: int, stored: Callable[[], Pairs], shape: ProcessorShape) -> None:
        self._pending = due
        self._looked_at = 0
        """How many of the changes `_pending` reflects."""
        self._until_us = until_us
        self._read = stored
        self._stored: Pairs | None = None
        self._shape = shape
        self._fired_us = np.full(owners, np.iinfo(np.int64).min)
        self._changes: list[tuple[Indices, Indices, Mask]] = []
        self._waiting: list[tuple[int, int, bool]] = []
        self._set_by_owner: dict[int, dict[int, bool]] | None = None
        """For each owner, its timers and whether they are set. None until `of_one` is first called."""

    def change(self, owners: Indices, at_us: Indices, alive: bool) -> None:
        """Set timers, or delete them."""
        if alive and bool(np.any(at_us <= self._fired_us[owners])):
            raise ProcessorError(
                f"{self._shape.name} sets a timer that is not later than the one that has just fired; it would fire for ever",
                where=self._shape.where,
                wanted="a later moment",
            )
        self._collect()
        self._changes.append((owners, at_us, np.full(len(owners), alive)))

    def change_one(self, owner: int, at_us: int, alive: bool) -> None:
        """Set or delete one timer."""
        if alive and at_us <= self._fired_us[owner]:
            self.change(np.array([owner]), np.array([at_us]), alive)
        self._waiting.append((owner, at_us, alive))
        if self._set_by_owner is not None:
            self._set_by_owner.setdefault(owner, {})[at_us] = alive

    def of(self, owners: Indices) -> Pairs:
        """All timers of these keys, earliest first."""
        owner, at_us = self._all()
        keep = np.isin(owner, owners)
        return owner[keep], at_us[keep]

    def of_one(self, owner: int) -> list[int]:
        """The timers of one key, earliest first. The first call reads the timers of all keys, so that later calls are cheap."""
        if self._set_by_owner is None:
            self._set_by_owner = {}
            for each, at_us in zip(*(column.tolist() for column in self._all()), strict=True):
                self._set_by_owner.setdefault(each, {})[at_us] = True
        return sorted(at_us for at_us, alive in self._set_by_owner.get(owner, {}).items() if alive)

    def _all(self) -> Pairs:
        if self._stored is None:
            self._stored = self._read()
        owner, at_us, alive = _last_changes([_alive(self._stored), *self._all_changes()])
        return owner[alive], at_us[alive]

    def pop_due(self) -> Pairs | None:
        """Remove and return the earliest due timer of every key that has one; None if there is none."""
        owner, at_us, alive = _last_changes([_alive(self._pending), *self._all_changes()[self._looked_at :]])
        self._looked_at = len(self._changes)
        keep = alive & (at_us <= self._until_us)
        owner, at_us = owner[keep], at_us[keep]
        if not len(owner):
            return None
        # They are sorted by owner and moment, so the first of each owner is its earliest.
        first = np.concatenate([[True], owner[1:] != owner[:-1]])
        self._pending = (owner[~first], at_us[~first])
        owner, at_us = owner[first], at_us[first]
        self._fired_us[owner] = at_us
        self._changes.append((owner, at_us, np.zeros(len(owner), dtype=np.bool_)))
        self._looked_at += 1
        if self._set_by_owner is not None:
            for each, us in zip(owner.tolist(), at_us.tolist(), strict=True):
                self._set_by_owner.setdefault(each, {})[us] = False
        return owner, at_us

    def changed(self) -> tuple[Indices, Indices, Mask]:
        """The changes to write: owner, moment, and true if the timer is set, false if it is deleted."""
        return _last_changes(self._all_changes())

    def _all_changes(self) -> list[tuple[Indices, Indices, Mask]]:
        self._collect()
        return self._changes

    def _collect(self) -> None:
        if self._waiting:
            owners, at_us, alive = zip(*self._waiting, strict=True)
            self._changes.append((np.array(owners), np.array(at_us), np.array(alive)))
            self._waiting = []


def _alive(pairs: Pairs) -> tuple[Indices, Indices, Mask]:
    return (*pairs, np.ones(len(pairs[0]), dtype=np.bool_))


def _last_changes(changes: list[tuple[Indices, Indices, Mask]]) -> tuple[Indices, Indices, Mask]:
    """The last change of each timer, sorted by owner and moment."""
    if not changes:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    owner, at_us, alive = (np.concatenate([change[i] for change in changes]) for i in range(3))
    order = np.lexsort((at_us, owner))
    owner, at_us, alive = owner[order], at_us[order], alive[order]
    last = np.ones(len(owner), dtype=np.bool_)
    last[:-1] = (owner[1:] != owner[:-1]) | (at_us[1:] != at_us[:-1])
    return owner[last].astype(np.int64), at_us[last].astype(np.int64), alive[last].astype(np.bool_)
