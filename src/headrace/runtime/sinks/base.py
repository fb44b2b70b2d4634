"""The interface of sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.errors import SinkError
from headrace.ids import Version
from headrace.operators.kernel import OutputMode
from headrace.runtime.options import Options


@dataclass(frozen=True)
class SinkRequest:
    """What the user asked for on the writer."""

    session: SparkSession
    format: str
    options: Options
    partition_by: tuple[str, ...]
    mode: OutputMode
    schema: StructType
    query_name: str | None
    where: str
    foreach_batch: Callable[[DataFrame, int], Any] | None = None


EXACTLY_ONCE = "exactly-once"


class Sink(ABC):
    """Base of all sinks."""

    guarantee: ClassVar[str] = "at-least-once"
    modes: ClassVar[tuple[OutputMode, ...]] = tuple(OutputMode)
    direct: ClassVar[bool] = False
    """True if the sink keeps nothing. Results may then reach it before the version is committed."""

    def __init__(self, request: SinkRequest) -> None:
        self.request = request
        if request.mode not in self.modes:
            raise SinkError(
                where=request.where,
                wanted=f"output mode {' or '.join(self.modes)} for the {request.format} sink",
                found=str(request.mode),
                hint="file sinks only append; use foreachBatch to merge updates into a table",
            )
        unknown = [c for c in request.partition_by if c not in request.schema.names]
        if unknown:
            raise SinkError(where=request.where, wanted=f"partition columns among {request.schema.names}", found=str(unknown))

    @property
    def place(self) -> str:
        """The name of the sink in errors."""
        request = self.request
        return f"{request.format if request.foreach_batch is None else 'foreachBatch'} sink ({request.where})"

    def identify(self, query: str, number: int) -> None:  # noqa: B027 (most sinks need no name)
        """Learn whose sink this is: an id that the checkpoint keeps, and the sink's number in the query. Called before all that follows."""

    def check_follows(self, newest: Version | None, delivered: Version | None) -> None:  # noqa: B027 (most sinks have nothing to refuse)
        """Raise an error if the sink has later results than the checkpoint, or lacks results that it was given.

        ``newest`` is the newest version of the checkpoint, and ``delivered`` the newest that all sinks were given; None if there is none.
        """

    def begin(self) -> None:  # noqa: B027 (most sinks have nothing to make)
        """Create what users see of the sink, such as a table. Called when the query has passed all checks and is about to start."""

    def close(self) -> None:  # noqa: B027 (most sinks hold nothing)
        """Let go of what the sink holds. Called once, when the query has ended."""

    @abstractmethod
    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        """Write the results of a version. None means that there are none."""
