"""How many rows a batch left behind in its sources, from Spark's offsets.

For each batch Spark knows three offsets of a source: where the batch begins, where it ends, and the newest when the batch was planned. They
are read while the batch runs. Spark's own progress of the batch has them too, but comes after ours, too late for the policy.

If a batch ends at the newest offset, it left nothing; so it is with all sources that have no limit. Otherwise the difference is counted.
Kafka's offsets count rows, by topic and partition. What the numbers of other sources count is not known. If a query has a single source,
the rows per unit are estimated from the batches so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.logs import logger
from headrace.runtime.lag import Lag, Place
from headrace.spark.streaming import SourceOffsets

Leaves = dict[tuple[str, ...], int]
_log = logger(__name__)


@dataclass(frozen=True)
class Topics:
    """The consumer lag of a query."""

    rows: Mapping[str, Mapping[str, int]]
    """By topic and partition: the rows that wait. Two sources that read one topic add up."""
    waiting_s: float
    """For how long rows have been waiting, in the partition where that is longest."""

    @property
    def total(self) -> int:
        return sum(rows for each in self.rows.values() for rows in each.values())


@dataclass
class OffsetBacklog:
    """Counts the rows that the batches of one query leave behind."""

    rows: int = 0
    units: int = 0
    """The sum by which the numbers in the offsets advanced while ``rows`` rows were read."""
    logged: set[str] = field(default_factory=set)
    """Classes of sources whose offsets do not count rows. Each is logged once."""
    lag: Lag = field(default_factory=Lag)

    def left(self, sources: Sequence[SourceOffsets], rows_taken: int) -> int | None:
        """Rows that were there when the batch was planned, and that it did not read; None if that is not known."""
        alone = len(sources) == 1
        for source in sources:
            if not source.counts_rows:
                self._log_once(source, alone)
        if alone and not sources[0].counts_rows:
            self._learn(sources[0], rows_taken)
        known = [rows for rows in (self._left(source, alone) for source in sources) if rows is not None]
        return sum(known) if known else None

    def _left(self, source: SourceOffsets, alone: bool) -> int | None:
        end, latest = _parsed(source.end), _parsed(source.latest)
        if end is None or latest is None:
            return None
        if json.dumps(end, sort_keys=True) == json.dumps(latest, sort_keys=True):
            return 0
        units = _between(end, latest, source.counts_rows)
        if units is None or source.counts_rows:
            return units
        return round(units * self.rows / self.units) if alone and self.units else None

    def waiting(self, sources: Sequence[SourceOffsets], planned_s: float) -> Topics | None:
        """The rows that wait now, in all sources whose offsets count rows; None if there are none, or if it is not known.

        ``planned_s`` is when Spark planned the batch.
        """
        found: dict[str, dict[str, int]] = {}
        read: dict[Place, int] = {}
        newest: dict[Place, int] = {}
        planned: dict[Place, int] = {}
        for number, source in enumerate(each for each in sources if each.counts_rows):
            ends, now = _leaves(_parsed(source.end)), _leaves(_parsed(source.now))
            if not ends or now is None:
                return None
            for topic, partition in now:
                # Rows of a partition that has just appeared count once a batch has read from it.
                behind = max(0, now[topic, partition] - ends.get((topic, partition), now[topic, partition]))
                rows = found.setdefault(topic, {})
                rows[partition] = rows.get(partition, 0) + behind
            read |= {(str(number), *place): offset for place, offset in ends.items()}
            newest |= {(str(number), *place): offset for place, offset in now.items()}
            planned |= {(str(number), *place): offset for place, offset in (_leaves(_parsed(source.latest)) or {}).items()}
        if planned:
            self.lag.note(planned, planned_s)
        return Topics(found, self.lag.waiting_s(read, newest)) if newest else None

    def _log_once(self, source: SourceOffsets, alone: bool) -> None:
        if source.kind in self.logged:
            return
        self.logged.add(source.kind)
        how = "estimated from earlier batches" if alone and _leaves(_parsed(source.end)) is not None else "not known"
        _log.info("offsets of %s do not count rows, so the number of rows that a batch leaves behind is %s", source.kind, how)

    def _learn(self, source: SourceOffsets, rows_taken: int) -> None:
        units = _between(_parsed(source.start), _parsed(source.end), False)
        if units:
            self.rows, self.units = self.rows + rows_taken, self.units + units


def _between(first: Any, second: Any, appearing: bool) -> int | None:
    """The sum by which the numbers advanced from one offset to another; None if the two do not have numbers in the same places.

    With ``appearing``, partitions may be added or removed. A new one does not count yet, as it is not known where it begins. Nor does one
    whose offset went back, because its topic was created again.
    """
    a, b = _leaves(first), _leaves(second)
    if a is None or b is None or (a.keys() != b.keys() and not appearing):
        return None
    steps = [b[path] - a[path] for path in b if path in a]
    return sum(max(0, step) for step in steps) if appearing or all(step >= 0 for step in steps) else None


def _leaves(offset: Any) -> Leaves | None:
    try:
        return dict(_walk(offset, ()))
    except TypeError:
        return None


def _walk(offset: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(offset, dict):
        for name, each in offset.items():
            yield from _walk(each, (*path, name))
    elif isinstance(offset, int) and not isinstance(offset, bool):
        yield path, offset
    else:
        raise TypeError(f"no number: {offset!r}")


def _parsed(offset: str | None) -> Any:
    if offset is None:
        return None
    try:
        return json.loads(offset)
    except ValueError:
        return offset
