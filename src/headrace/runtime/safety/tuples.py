"""The rows of the last batches, kept on executors for sources that cannot give them again (Floe's peer backup of tuples).

    before a batch's rows are used    q + 1 executors have a copy of them
    a version is lost                 it is computed again from the copies
    a later version is durable        the copies are evicted

In Floe a peer evicts tuples older than T_s - 2 L_n: those before the last state that it was given, less what may be under way between two
clocks. Here versions take the place of clocks. A version is durable when its manifest is written, after Spark has committed its batch. So
nothing can be under way, and the rows of all versions up to it are evicted.

The executors end with the driver, and their copies with them. What Headrace promises then depends on the source.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.errors import SourceError
from headrace.ids import Version
from headrace.logs import logger, suppressed
from headrace.spark.executors import Executors
from headrace.spark.gateway import GONE
from headrace.spark.kept_rows import drop_rows, keep_rows

_log = logger(__name__)


@dataclass
class Tuples:
    """Keeps the rows of batches whose state is not durable yet."""

    location: str
    """The query's checkpoint, for messages."""
    executors: Executors | None
    """None with a local master, where only the driver can be lost. Then no rows are kept."""
    replicas: int
    """How many executors may be lost at once."""
    forgetful: tuple[str, ...]
    """A sentence for each source whose rows nobody has once the driver is lost."""
    _kept: dict[Version, DataFrame] = field(default_factory=dict)
    _holders: int | None = None

    @property
    def copies(self) -> int:
        """How many executors keep each row."""
        return 0 if self.executors is None else self.replicas + 1

    def keep(self, batch: DataFrame, version: Version, durable: Version) -> DataFrame:
        """Keep the rows of a batch, and evict those of durable versions. Returns a DataFrame with the rows, which reads the copies."""
        self.evict(durable)
        if not self.copies:
            return batch
        if version in self._kept:
            # The batch runs again.
            return self._kept[version]
        kept = self._kept[version] = keep_rows(batch, self.copies)
        self._note_holders()
        return kept

    def _note_holders(self) -> None:
        """Log when there are too few executors for all copies, and when there are enough again."""
        assert self.executors is not None
        found = min(self.copies, len(self.executors.live()))
        if found != self._holders:
            level = logging.INFO if found == self.copies else logging.WARNING
            _log.log(level, "rows that their source cannot give again have copies on %d executors; %d are wanted", found, self.copies)
        self._holders = found

    def rows(self, version: Version) -> DataFrame | None:
        """The rows of a batch; None if they must be read from the source. Raises an error if that cannot give them."""
        found = self._kept.get(version)
        if found is None and self.forgetful:
            raise SourceError(
                where=f"computing version {version} of {self.location} again",
                wanted="the rows of its batch, which executors kept until the driver was lost",
                found="; ".join(self.forgetful),
                hint="start with a new checkpointLocation; stop the query with stop() to lose nothing",
            )
        return found

    def lost(self, version: Version) -> SourceError:
        """The error that all copies of some rows are gone."""
        return SourceError(
            where=f"batch {version} of {self.location}",
            wanted=f"rows that {self.copies} executors kept, because their source cannot give them again",
            found="that all executors with some of them were lost at once",
            hint="raise headrace.replicas to survive the loss of more executors; start with a new checkpointLocation",
        )

    def evict(self, durable: Version) -> None:
        """Remove the rows of versions that are durable."""
        for version in [each for each in self._kept if each <= durable]:
            drop_rows(self._kept.pop(version))

    def close(self) -> None:
        """Remove all rows."""
        with suppressed(_log, "Spark has ended, and with it the rows that it kept", PySparkException, *GONE, level=logging.INFO):
            while self._kept:
                drop_rows(self._kept.popitem()[1])
