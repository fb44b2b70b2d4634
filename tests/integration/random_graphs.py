"""Random queries, each as a stream and as plain Python over a list of rows.

Every step turns rows of (k, ts, v) into rows of the same columns, so steps fit together in any order. Times are whole seconds and a
reference keeps them in microseconds since the epoch of the tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pyspark.sql import functions as F

import headrace as hr

SECOND = 1_000_000
Row = tuple[str, int, int]
Rows = list[Row]


@dataclass(frozen=True)
class Query:
    """What the user writes, and what it means."""

    text: str
    build: Callable[[Any], Any]
    mean: Callable[[Rows], Rows]
    unique: bool = False
    """Whether no key has two rows at one time: only then is the order of rows certain to the reference."""


START = Query("rows", lambda stream: stream, lambda rows: rows)


def draw(random: Random, steps: int, query: Query = START) -> Query:
    """A random query of so many steps behind the given one."""
    for _ in range(steps):
        choices = [_filter, _map, _window, _window, _session, _dedup, _union, _join]
        if query.unique:
            choices += [_count, _count]
        query = random.choice(choices)(random, query)
    return query


def stateful(query: Query) -> int:
    return sum(query.text.count(word) for word in ("window", "session", "dedup", "count", "join"))


def _filter(random: Random, query: Query) -> Query:
    rest = random.randrange(3)
    return Query(
        f"{query.text} | v % 3 <> {rest}",
        lambda stream: query.build(stream).filter(f"v % 3 <> {rest}"),
        lambda rows: [row for row in query.mean(rows) if row[2] % 3 != rest],
        query.unique,
    )


def _map(random: Random, query: Query) -> Query:
    add = random.randrange(1, 50)
    return Query(
        f"{query.text} | v + {add}",
        lambda stream: query.build(stream).withColumn("v", F.col("v") + add),
        lambda rows: [(k, t, v + add) for k, t, v in query.mean(rows)],
        query.unique,
    )


def _window(random: Random, query: Query) -> Query:
    size_s, advance_s = random.choice(((10, 10), (60, 20), (45, 15), (120, 120)))

    def build(stream: Any) -> Any:
        grouped = query.build(stream).groupBy("k", F.window("ts", f"{size_s} seconds", f"{advance_s} seconds"))
        return grouped.agg(F.sum("v").alias("v")).select("k", F.window_time("window").alias("ts"), "v")

    def mean(rows: Rows) -> Rows:
        size, advance = size_s * SECOND, advance_s * SECOND
        sums: dict[tuple[str, int], int] = defaultdict(int)
        for k, t, v in query.mean(rows):
            start = t // advance * advance
            while start > t - size:
                sums[k, start + size - 1] += v
                start -= advance
        return [(k, t, v) for (k, t), v in sums.items()]

    return Query(f"{query.text} | window({size_s}, {advance_s})", build, mean, unique=True)


def _session(random: Random, query: Query) -> Query:
    gap_s = random.choice((5, 15))

    def build(stream: Any) -> Any:
        grouped = query.build(stream).groupBy("k", F.session_window("ts", f"{gap_s} seconds")).agg(F.max("v").alias("v"))
        return grouped.select("k", F.window_time("session_window").alias("ts"), "v")

    def mean(rows: Rows) -> Rows:
        found: Rows = []
        for key, own in _by_key(query.mean(rows)).items():
            end, best = None, 0
            for t, v in own:
                if end is not None and t <= end:
                    end, best = max(end, t + gap_s * SECOND), max(best, v)
                    continue
                if end is not None:
                    found.append((key, end - 1, best))
                end, best = t + gap_s * SECOND, v
            assert end is not None
            found.append((key, end - 1, best))
        return found

    return Query(f"{query.text} | session({gap_s})", build, mean, unique=True)


def _count(random: Random, query: Query) -> Query:
    size, advance = random.choice(((2, 2), (3, 1), (4, 3)))

    def build(stream: Any) -> Any:
        grouped = query.build(stream).groupBy("k", hr.count_window(size, advance)).agg(F.sum("v").alias("v"))
        return grouped.select("k", F.window_time("count_window").alias("ts"), "v")

    def mean(rows: Rows) -> Rows:
        found: Rows = []
        for key, own in _by_key(query.mean(rows)).items():
            for begin in range(0, len(own) - size + 1, advance):
                part = own[begin : begin + size]
                found.append((key, part[-1][0], sum(v for _, v in part)))
        return found

    return Query(f"{query.text} | count({size}, {advance})", build, mean, unique=True)


def _dedup(random: Random, query: Query) -> Query:
    return Query(
        f"{query.text} | dedup",
        lambda stream: query.build(stream).dropDuplicates(["k", "ts"]).select("k", "ts", F.lit(1).cast("long").alias("v")),
        lambda rows: [(k, t, 1) for k, t in sorted({(k, t) for k, t, _ in query.mean(rows)})],
        unique=True,
    )


def _union(random: Random, query: Query) -> Query:
    """Two ways on from one stream, and together again."""
    one, other = draw(random, 1, query), draw(random, random.randrange(2), query)
    return Query(
        f"({one.text} + {other.text})",
        lambda stream: one.build(stream).union(other.build(stream)),
        lambda rows: one.mean(rows) + other.mean(rows),
    )


def _join(random: Random, query: Query) -> Query:
    within_s = random.choice((2, 10))
    other = _filter(random, query)

    def build(stream: Any) -> Any:
        pairs = query.build(stream).join(other.build(stream), on="k", within=f"{within_s} seconds")
        return pairs.select("k", "ts", (F.col("v") + F.col("v_right") * 2).alias("v"))

    def mean(rows: Rows) -> Rows:
        left, right = _by_key(query.mean(rows)), _by_key(other.mean(rows))
        pairs = ((k, a, b) for k, own in left.items() for a in own for b in right.get(k, []))
        return [(k, a[0], a[1] + 2 * b[1]) for k, a, b in pairs if abs(a[0] - b[0]) <= within_s * SECOND]

    return Query(f"({query.text}) join({within_s}) ({other.text})", build, mean)


def _by_key(rows: Rows) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for k, t, v in sorted(rows, key=lambda row: row[1]):
        found[k].append((t, v))
    return found
