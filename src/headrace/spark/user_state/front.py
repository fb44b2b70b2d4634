"""PySpark's side of the kernel of users' code: rows, frames, timer values and group states, made in the task."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from headrace.spark.types import to_arrow
from headrace.spark.user_state.codecs import TupleCodec
from headrace.spark.user_state.frames import FrameOutput, KeyedFrames, key_tuples
from headrace.spark.user_state.lazy import lazy_results
from headrace.spark.user_state.rows import RowGroups, RowOutput

NO_TIMESTAMP = -1


class Form(StrEnum):
    """The form of rows that user code gets."""

    ROWS = "rows"
    PANDAS = "pandas"
    GROUP_STATE = "group state"


@dataclass(frozen=True)
class Conversion:
    """Spark's settings for pandas code."""

    zone: str
    rows_max: int
    """Frames have at most this many rows."""
    safe: bool
    by_name: bool


@dataclass(frozen=True)
class UserFront:
    """Gives the kernel PySpark's objects. Plain data; pickled into the tasks."""

    form: Form
    keys: T.StructType
    rows: T.StructType
    result: T.StructType
    initial: T.StructType | None
    variables: dict[str, tuple[T.StructType, T.StructType | None]]
    """By name of a state variable: its values, and its map keys."""
    conversion: Conversion
    timeout: str
    """For group states: Spark's name of the kind of timeout."""
    has_watermark: bool
    name: str
    where: str

    def codec(self, variable: str, keys: bool = False) -> TupleCodec:
        """The codec of a variable's values, or of its map keys."""
        values, map_keys = self.variables[variable]
        if not keys:
            return TupleCodec(values)
        assert map_keys is not None
        return TupleCodec(map_keys)

    def groups(self, columns: list[pa.Array], keys: list[pa.Array], starts: Any) -> Any:
        """The rows of a batch, one group per key."""
        return self._groups(self.rows, columns, keys, starts)

    def initial_groups(self, columns: list[pa.Array], keys: list[pa.Array], starts: Any) -> Any:
        """The rows of the initial state, one group per key."""
        assert self.initial is not None or not columns
        return self._groups(self.initial or self.rows, columns, keys, starts)

    def rows_of_keys(self, keys: list[pa.Array]) -> list[Any]:
        """Keys as the user's code gets them when timers fire or states time out."""
        if self.form is Form.GROUP_STATE:
            return key_tuples(keys, self.keys, self.conversion.zone, as_numpy=True)
        make = Row(*self.keys.names)
        return [make(*values) for values in TupleCodec(self.keys).tuples(keys)]

    def timer_values(self, now_ms: int, watermark_ms: int) -> TimerValues:
        """The times of a batch."""
        return TimerValues(now_ms, watermark_ms)

    def expired(self, at_ms: int) -> ExpiredTimerInfo:
        """What a handler gets to know about a timer."""
        return ExpiredTimerInfo(at_ms)

    def group_state(self, value: tuple[Any, ...] | None, now_ms: int, watermark_ms: int, timed_out: bool) -> GroupState:
        """The state of a key, for a function with a group state."""
        exists = value is not None
        return GroupState(
            optionalValue=value,  # type: ignore[arg-type]
            batchProcessingTimeMs=now_ms,
            eventTimeWatermarkMs=watermark_ms,
            timeoutConf=self.timeout,
            hasTimedOut=timed_out,
            watermarkPresent=self.has_watermark,
            defined=exists,
            updated=False,
            removed=False,
            timeoutTimestamp=NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._state_schema,
        )

    def outcome(self, state: GroupState) -> tuple[tuple[Any, ...] | None, bool, bool, int]:
        """What the function did with a state: its value, updated, removed, and the timeout in ms or -1."""
        value = None
        if state._defined and state._updated:
            value = self.state_codec.plain(tuple(state._value))
            if len(value) != len(self._state_schema.fields):
                raise ValueError(f"the state has {len(self._state_schema.fields)} columns, and the new value is {value!r}")
        elif state._defined:
            value = state._value
        return value, state._updated, state._removed, int(state._timeout_timestamp)

    def no_rows(self) -> pd.DataFrame:
        """What a function gets when a key times out."""
        return pd.DataFrame(columns=self.rows.names)

    def output(self) -> Any:
        """A collector of what the user's code emits."""
        if self.form is Form.ROWS:
            return RowOutput(pa.schema([(f.name, to_arrow(f.dataType)) for f in self.result.fields]), self.name, self.where)
        of = self.conversion
        return FrameOutput(self.result, of.zone, of.safe, of.by_name, self.name, self.where)

    def running(self) -> AbstractContextManager[None]:
        """While user code runs, frames that it makes may be lazy."""
        return nullcontext() if self.form is Form.ROWS else lazy_results()

    @cached_property
    def state_codec(self) -> TupleCodec:
        return TupleCodec(self._state_schema)

    @cached_property
    def _state_schema(self) -> T.StructType:
        return next(iter(self.variables.values()))[0]

    def _groups(self, schema: T.StructType, columns: list[pa.Array], keys: list[pa.Array], starts: Any) -> Any:
        zone = self.conversion.zone
        if self.form is Form.ROWS:
            return RowGroups(schema.names, columns, keys, starts, zone)
        if not columns:
            return KeyedFrames([], T.StructType([]), False, zone, T.StructType([]), [], starts, zone, 1, True)
        as_numpy = self.form is Form.GROUP_STATE
        frames = (schema, columns, starts, zone, self.conversion.rows_max, not as_numpy)
        return KeyedFrames(keys, self.keys, as_numpy, zone, *frames)
