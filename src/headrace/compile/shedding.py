"""Dropping rows at the head of branches, in the JVM.

    rows of a branch --observe--> arrived, kept [, worths] --filter--> kept rows

A row is kept if ``pmod(xxhash64(identity, seed), 1000000) < threshold``. The threshold is an element of an array, at a position that
only the row decides. So Spark cannot put its value into generated code, which would have to be compiled anew for every plan.

What identifies a row is chosen when the query starts: file and position in it (Parquet), or topic, partition and offset (Kafka, if the
stream has these columns). Otherwise it is the row's content, so that equal rows are kept or dropped together.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import CheckpointMismatchError
from headrace.graph.shedding import By, ShedStep
from headrace.logs import logger, suppressed
from headrace.spark.expressions import quoted
from headrace.state.drops import SCALE, Counted, Drop, Drops, ShedId

_log = logger(__name__)

IDENTITY = "__headrace_identity"
"""The column with a hash of what identifies a row of a source."""
OFFSETS = ("topic", "partition", "offset")
OBSERVED = "headrace."
"""The prefix of observations, before the name of the place."""
SAMPLED = 8
"""One of so many rows is looked at to learn what rows are worth."""
PERCENTILES = [at / 100 for at in range(101)]


@dataclass(frozen=True)
class Dropping:
    """What the branches of one version drop, and what they counted."""

    names: Mapping[int, ShedId] = field(default_factory=dict)
    """The place of each step, by the step's id()."""
    drops: Drops | None = None
    """None: nothing is dropped."""
    counted: dict[ShedId, Counted] = field(default_factory=dict)
    """Filled while the version is made."""

    @classmethod
    def of(cls, names: Mapping[int, ShedId], drops: Drops | None, where: str) -> Dropping:
        """Raises an error if the drops name a place that the query does not have."""
        unknown = [] if drops is None else [name for name in drops.places if name not in names.values()]
        if unknown:
            raise CheckpointMismatchError(
                where=where,
                wanted=f"a batch that dropped rows only where this query may: {', '.join(names.values()) or 'nowhere'}",
                found=f"one that dropped rows at {', '.join(unknown)}",
                hint="start the program once with the hr.shed calls that it had, so that it ends this batch; then change it",
            )
        return cls(names, drops)

    @property
    def key(self) -> tuple[object, ...]:
        """What plans with these drops differ in."""
        return () if self.drops is None else tuple(sorted((name, each.threshold, each.cut) for name, each in self.drops.places.items()))

    def apply(self, step: ShedStep, rows: DataFrame) -> DataFrame:
        """The rows that a place keeps. They are counted."""
        place, drop, position = self._at(step, rows)
        counted = rows.observe(OBSERVED + place, *_counts(step, drop, position))
        kept = counted if drop.keeps_all else counted.filter(_keeps(step, drop, position))
        if step.weight is not None:
            share = SCALE / drop.threshold if drop.threshold else 1.0
            kept = kept.withColumn(step.weight, _varying([share], position, "double"))
        return kept.drop(IDENTITY)

    def count(self, step: ShedStep, rows: DataFrame) -> None:
        """Count what a place keeps of these rows, in a job of its own."""
        place, drop, position = self._at(step, rows)
        self.learn({OBSERVED + place: rows.agg(*_counts(step, drop, position)).collect()[0].asDict()})

    def _at(self, step: ShedStep, rows: DataFrame) -> tuple[ShedId, Drop, Column]:
        """The place, what it drops, and the number that decides whether it keeps a row."""
        place = self.names[id(step)]
        return place, Drop() if self.drops is None else self.drops.at(place), hashed(step, rows, place)

    def learn(self, observed: Mapping[str, Mapping[str, object]]) -> None:
        """Note what was observed while a plan with these drops ran."""
        for name, values in observed.items():
            if not name.startswith(OBSERVED):
                continue
            arrived, kept, worths = values.get("arrived"), values.get("kept"), values.get("worths")
            if isinstance(arrived, int) and isinstance(kept, int):
                percentiles = tuple(float(each) for each in worths) if isinstance(worths, list) else ()
                self.counted[ShedId(name.removeprefix(OBSERVED))] = Counted(arrived, kept, percentiles)


NO_DROPPING = Dropping()


def _counts(step: ShedStep, drop: Drop, position: Column) -> list[Column]:
    found = [F.count(F.lit(1)).alias("arrived"), F.count_if(_keeps(step, drop, position)).alias("kept")]
    if step.by is By.WORTH:
        sampled = F.when(F.pmod(position, F.lit(SAMPLED)) == 0, _worth(step))
        found.append(F.percentile_approx(sampled, PERCENTILES, 1000).alias("worths"))
    return found


def seed_of(place: ShedId) -> int:
    """The seed of a place's hash. It is the same in every start of the query.

    >>> seed_of(ShedId("shed"))
    396238638
    """
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") >> 1


def hashed(step: ShedStep, rows: DataFrame, place: ShedId) -> Column:
    """The number from 0 to 999,999 that decides whether a row is kept."""
    if step.by is By.KEY:
        identity = F.xxhash64(*step.columns)
    elif IDENTITY in rows.columns:
        identity = F.col(IDENTITY)
    else:
        identity = F.xxhash64(*_content(rows.schema))
    return F.pmod(F.xxhash64(identity, F.lit(seed_of(place))), F.lit(SCALE))


def identified(frame: DataFrame) -> tuple[DataFrame, str]:
    """A streaming DataFrame with the identity of each row in a column, and what identifies a row, in words."""
    with suppressed(_log, "rows have no position in a file", AnalysisException, level=logging.DEBUG):
        in_file = F.xxhash64("_metadata.file_path", "_metadata.row_index").alias(IDENTITY)
        return frame.select("*", in_file), "file and position in it"
    if set(OFFSETS) <= set(frame.columns):
        return frame.select("*", F.xxhash64(*OFFSETS).alias(IDENTITY)), "topic, partition and offset"
    return frame.select("*", F.xxhash64(*_content(frame.schema)).alias(IDENTITY)), "its content: equal rows stay or go together"


def _content(schema: StructType) -> list[Column]:
    # Spark cannot hash maps, nor values that contain some.
    hashable = [each for each in schema.fields if not any(word in each.dataType.simpleString() for word in ("map<", "variant"))]
    return [F.col(quoted(each.name)) for each in hashable] or [F.lit(0)]


def _worth(step: ShedStep) -> Column:
    (worth,) = step.columns
    return F.coalesce(worth.cast("double"), F.lit(float("-inf")))


def _keeps(step: ShedStep, drop: Drop, position: Column) -> Column:
    by_hash = position < _varying([drop.threshold], position, "int")
    if drop.cut is None:
        return by_hash
    cut = _varying([drop.cut], position, "double")
    return (_worth(step) > cut) | ((_worth(step) == cut) & by_hash)


def _varying(values: list[float] | list[int], position: Column, kind: str) -> Column:
    """A value that differs from batch to batch, which must not become a part of generated code."""
    text = ",".join(repr(each) for each in values)
    array = F.split(F.lit(text), ",").cast(f"array<{kind}>")
    return F.get(array, F.pmod(position, F.lit(len(values))).cast("int"))
