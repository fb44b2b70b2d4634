"""A streaming DataFrame of Spark's that Headrace is to run. It becomes a graph when its query starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.api.sources import check_source
from headrace.config import PREFIX
from headrace.errors import QueryError, UnsupportedError
from headrace.frontend.lower import lower
from headrace.graph.nodes import Rows
from headrace.logs import logger
from headrace.spark.streaming_checks import check_sink, check_streaming

_log = logger(__name__)
_NO_OPTIONS: Mapping[str, str] = {}


@dataclass(frozen=True)
class SparkFrame:
    """A streaming DataFrame, with the operators that Spark would run."""

    frame: DataFrame

    @property
    def session(self) -> SparkSession:
        return self.frame.sparkSession

    @property
    def schema(self) -> StructType:
        return self.frame.schema

    def lowered(self, mode: str, where: str, options: Mapping[str, str]) -> Rows:
        """The DataFrame as a graph. What Spark refuses to run in this output mode is refused with Spark's own error."""
        check_source(self.frame, where)
        check_streaming(self.frame, mode)
        return self.rows(where, mode, options)

    def rows(self, where: str, mode: str = "append", options: Mapping[str, str] = _NO_OPTIONS) -> Rows:
        """The DataFrame as a graph, if Spark accepts it."""
        return lower(self.frame, where, mode, panes=option_of(self.session, options, "panes") != "false")

    def check_sink(self, format: str, mode: str, name: str | None, checkpoint: str | None) -> None:
        """Raise Spark's own error if Spark refuses the sink."""
        check_sink(self.session, format, mode, name, checkpoint)

    def say_fallback(self, refused: UnsupportedError) -> None:
        """Log that Spark runs the query, and why."""
        _log.warning("Spark runs this query on its own operators, because headrace.fallback is spark: %s", refused)


def falls_back(session: SparkSession, options: Mapping[str, str]) -> bool:
    """True if Spark shall run what Headrace cannot."""
    value = option_of(session, options, "fallback") or "error"
    if value not in ("error", "spark"):
        raise QueryError(where=f"option '{PREFIX}fallback'", wanted="error or spark", found=repr(value))
    return value == "spark"


def option_of(session: SparkSession, options: Mapping[str, str], name: str) -> str | None:
    """An option of Headrace's: the writer's, or else the session's."""
    wanted = f"{PREFIX}{name}".lower()
    for source in (options, session.conf.getAll):
        found = [value for key, value in source.items() if key.lower() == wanted]
        if found:
            return str(found[-1]).lower()
    return None
