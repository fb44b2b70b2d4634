"""Dropping rows in the JVM, in the plan of their source, before they are handed over to the batch.

    source --identity--> decide for each place --observe--> arrived, kept [, worths] --filter: wanted somewhere?--> batch --> branches

A row is kept at a place if ``pmod(xxhash64(identity, seed), 1000000) < threshold``. The thresholds are dials (``spark/dials.py``), which
are turned before each batch. For all places of a source the decisions are bits of one number. Rows that no branch wants do not leave the
plan of the source; if several branches read it, the number goes along, and each branch takes the rows with its bit.

A place behind steps that were moved to the batch, which drops by columns that these make, decides at its branch instead.

All places have the same seed. So places that drop by the same identity keep the same rows, as far as their shares allow: as few rows as
possible are wanted somewhere, and a join of two streams that are shed by its key loses keys, not pairs.

What identifies a row is chosen when the query starts: file and position in it (Parquet), or topic, partition and offset (Kafka, if the
stream has these columns). Otherwise it is the row's content, so that equal rows are kept or dropped together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import CheckpointMismatchError, QueryError
from headrace.graph.shedding import By, ShedStep
from headrace.logs import logger, suppressed
from headrace.spark.dials import Dial
from headrace.spark.expressions import quoted
from headrace.state.drops import SCALE, Counted, Drop, Drops, ShedId

_log = logger(__name__)

IDENTITY = "__headrace_identity"
"""The column with a hash of what identifies a row of a source."""
WANTED = "__headrace_wanted"
"""The column whose bits say which places keep a row."""
OFFSETS = ("topic", "partition", "offset")
OBSERVED = "headrace."
"""The prefix of observations, before the name of the place that counts, or of the first place of a source."""
SAMPLED = 8
"""One of so many rows is looked at to learn what rows are worth."""
PERCENTILES = [at / 100 for at in range(101)]
SEED = 396238638
"""The seed of all hashes that decide about rows."""
PLACES_MAX = 62
"""A source may have so many places, one for each bit that a number has for them."""

Observed = Mapping[str, Mapping[str, object]]
"""By name of an observation: its values by column."""


@dataclass(frozen=True)
class Dials:
    """The numbers in plans that say what one place drops."""

    threshold: Dial
    cut: Dial
    stands_for: Dial

    @classmethod
    def made(cls, session: SparkSession) -> Dials:
        return cls(Dial(session, "int", SCALE), Dial(session, "double", None), Dial(session, "double", 1.0))

    def turn(self, drop: Drop) -> None:
        self.threshold.set(drop.threshold)
        self.cut.set(drop.cut)
        self.stands_for.set(SCALE / drop.threshold if drop.threshold else 1.0)


@dataclass(frozen=True)
class Place:
    """A call of ``hr.shed`` in a running query."""

    id: ShedId
    step: ShedStep
    dials: Dials
    bit: int | None
    """Which bit of `WANTED` is its decision. None if it decides at its branch."""
    shares: bool
    """True if other branches get rows of the source that this place drops, so that its branch must look at the bit."""

    def keeps(self, position: Column) -> Column:
        """True for the rows that it keeps."""
        by_hash = position < self.dials.threshold.beside(position)
        if self.step.by is not By.WORTH:
            return by_hash
        worth, cut = _worth(self.step), self.dials.cut.beside(position)
        return F.coalesce(worth > cut, F.lit(False)) | (by_hash & (cut.isNull() | (worth == cut)))

    def counts(self, kept: Column, position: Column) -> list[Column]:
        """What is observed of the rows that arrive."""
        found = [F.count(F.lit(1)).alias(f"{self.id}.arrived"), F.count_if(kept).alias(f"{self.id}.kept")]
        if self.step.by is By.WORTH:
            sampled = F.when(F.pmod(position, F.lit(SAMPLED)) == 0, _worth(self.step))
            found.append(F.percentile_approx(sampled, PERCENTILES, 1000).alias(f"{self.id}.worths"))
        return found


@dataclass(frozen=True)
class Dropping:
    """What the branches of one version drop, and what they counted."""

    places: Mapping[int, Place] = field(default_factory=dict)
    """By the id() of their steps."""
    drops: Drops | None = None
    """None: nothing is dropped."""
    counted: dict[ShedId, Counted] = field(default_factory=dict)
    """Filled while the version is made."""
    read: Callable[[], Observed] = dict
    """Gives what the plans of the sources have counted in this batch until now."""
    tags: dict[str, str] = field(default_factory=dict)
    """By job that reads these rows: the tag under which Spark knows how long its tasks ran. Filled while they run."""
    _before: dict[ShedId, Counted] = field(default_factory=dict)
    """What they had counted when the attempt began whose rows count."""

    @classmethod
    def of(cls, places: Mapping[int, Place], drops: Drops | None, where: str, read: Callable[[], Observed] = dict) -> Dropping:
        """Turn the dials to what a version drops. Raises an error if it drops at a place that the query does not have."""
        known = {place.id for place in places.values()}
        unknown = [] if drops is None else [name for name in drops.places if name not in known]
        if unknown:
            raise CheckpointMismatchError(
                where=where,
                wanted=f"a batch that dropped rows only where this query may: {', '.join(known) or 'nowhere'}",
                found=f"one that dropped rows at {', '.join(unknown)}",
                hint="start the program once with the hr.shed calls that it had, so that it ends this batch; then change it",
            )
        for place in places.values():
            place.dials.turn(Drop() if drops is None else drops.at(place.id))
        return cls(places, drops, read=read)

    def at(self, step: object) -> Place | None:
        """The place of a step; None if it is no place."""
        return self.places.get(id(step))

    def taken(self, steps: Iterable[object], rows: DataFrame) -> DataFrame:
        """The rows of a source that a branch with these steps takes."""
        for place in (place for step in steps if (place := self.at(step)) is not None):
            if place.bit is not None and place.shares:
                rows = rows.filter(_has(place.bit))
        return rows

    def apply(self, place: Place, rows: DataFrame) -> DataFrame:
        """The rows of a branch behind a place."""
        if place.bit is None:
            position = hashed(place.step, rows)
            keeps = place.keeps(position)
            rows = rows.observe(OBSERVED + place.id, *place.counts(keeps, position)).filter(keeps)
        if place.step.weight is not None:
            varying = F.col(WANTED) if WANTED in rows.columns else hashed(place.step, rows)
            rows = rows.withColumn(place.step.weight, place.dials.stands_for.beside(varying))
            _check_set(place.step, rows, [place.dials.stands_for])
        return rows.drop(WANTED)

    def count(self, place: Place, rows: DataFrame) -> None:
        """Count what a place that decides at its branch keeps of these rows, in a job of its own."""
        position = hashed(place.step, rows)
        self.learn({OBSERVED + place.id: rows.agg(*place.counts(place.keeps(position), position)).collect()[0].asDict()})

    def again(self) -> None:
        """Only what is counted from now on counts: the rows are processed again."""
        self._before.clear()
        self._before.update(_counted(self.read()))

    def learn_from_sources(self) -> None:
        """Note what the plans of the sources have counted in this attempt."""
        for place, now in _counted(self.read()).items():
            before = self._before.get(place, Counted(0, 0))
            # If nothing came since, the rows were kept from before, and counted then.
            counts = (now.arrived - before.arrived, now.kept - before.kept) if now.arrived > before.arrived else (now.arrived, now.kept)
            self.counted[place] = Counted(*counts, now.worths)

    def learn(self, observed: Observed) -> None:
        """Note what was observed while the plan of a branch ran."""
        self.counted.update(_counted(observed))


NO_DROPPING = Dropping()


def _counted(observed: Observed) -> dict[ShedId, Counted]:
    found = {}
    for name, values in observed.items():
        for column in values if name.startswith(OBSERVED) else ():
            place, _, what = column.rpartition(".")
            arrived, kept, worths = values[column], values.get(f"{place}.kept"), values.get(f"{place}.worths")
            if what == "arrived" and isinstance(arrived, int) and isinstance(kept, int):
                percentiles = tuple(float(each) for each in worths) if isinstance(worths, list) else ()
                found[ShedId(place)] = Counted(arrived, kept, percentiles)
    return found


def decided(frame: DataFrame, places: list[Place], all_may_go: bool) -> DataFrame:
    """The rows of a source of which some place, or a branch without one, gets something. The last column says which places keep a row.

    ``all_may_go``: every branch begins with a place, so that rows which no place keeps are dropped.
    """
    rows = identified(frame)[0] if any(place.step.by is not By.KEY for place in places) else frame
    positions = {place.id: hashed(place.step, rows) for place in places}
    bits = [F.when(place.keeps(positions[place.id]), F.lit(1 << _bit(place))).otherwise(F.lit(0)).cast("long") for place in places]
    marked = rows.withColumn(WANTED, reduce(lambda one, other: one.bitwiseOR(other), bits))
    counts = [count for place in places for count in place.counts(_has(_bit(place)), positions[place.id])]
    # The observation also keeps Spark from filtering below the nodes that observe event times.
    observed = marked.observe(OBSERVED + places[0].id, *counts).drop(IDENTITY)
    wanted = observed.filter(F.col(WANTED) != 0) if all_may_go else observed
    for place in places:
        _check_set(place.step, wanted, [place.dials.threshold])
    return wanted if any(place.shares or place.step.weight is not None for place in places) else wanted.drop(WANTED)


def _check_set(step: ShedStep, rows: DataFrame, dials: list[Dial]) -> None:
    """Raise an error if Spark's optimiser has computed something from a dial, since only constants decide. It could no longer be turned."""
    if not all(dial.is_in(rows) for dial in dials):
        raise QueryError(
            where=step.where,
            wanted="rows that differ in the columns that decide which of them are dropped",
            found="columns with the same value in all rows",
            hint='shed by="random", or by columns of the source',
        )


def check_count(places: list[ShedStep]) -> None:
    """Raise an error if a source has more places than a number has bits."""
    if len(places) > PLACES_MAX:
        raise QueryError(
            where=places[PLACES_MAX].where,
            wanted=f"at most {PLACES_MAX} calls of hr.shed on one source",
            found=str(len(places)),
            hint="shed one stream, and use it for several results",
        )


def _bit(place: Place) -> int:
    assert place.bit is not None
    return place.bit


def _has(bit: int) -> Column:
    return F.col(WANTED).bitwiseAND(F.lit(1 << bit)) != 0


def hashed(step: ShedStep, rows: DataFrame) -> Column:
    """The number from 0 to 999,999 that decides whether a row is kept."""
    if step.by is By.KEY:
        identity = F.xxhash64(*step.columns)
    elif IDENTITY in rows.columns:
        identity = F.col(IDENTITY)
    else:
        identity = F.xxhash64(*_content(rows.schema))
    return F.pmod(F.xxhash64(identity, F.lit(SEED)), F.lit(SCALE))


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
