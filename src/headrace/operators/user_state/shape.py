"""What a user's stateful code declares: its columns, state variables, clock, and the form of its rows. Plain data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from headrace.operators.kernel import MAIN
from headrace.operators.lifetime import FOREVER, UNTIL_FIRED, WRITTEN, Lifetime, TimeToLive
from headrace.operators.shape import TimerClock
from headrace.operators.store import Store
from headrace.state.layout import Layout

TIMERS = "timers"
"""The name of the store of timers, unless a state variable has it."""
GROUP_STATE = "state"
"""The name of the only variable of ``applyInPandasWithState``."""
TIMEOUT = "timeout"
"""Value column of group states: when the state times out, in milliseconds; null for never."""
EXISTS = "exists"
"""Value column of group states: false for a key that has a timeout and no state."""

Values = tuple[Any, ...]


class Interface(StrEnum):
    """The form in which user code gets and gives rows."""

    ROWS = "transformWithState"
    PANDAS = "transformWithStateInPandas"
    GROUP_STATE = "applyInPandasWithState"


class TimeMode(StrEnum):
    """The clock of timers, or of timeouts."""

    NONE = "none"
    PROCESSING = "processing"
    EVENT = "event"


class Kind(StrEnum):
    """The kinds of state variables."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True)
class Variable:
    """A state variable that ``init`` declares."""

    kind: Kind
    name: str
    values: pa.Schema
    """The columns of a value, of an element of a list, or of the values of a map."""
    keys: pa.Schema | None = None
    """The key columns of a map."""
    ttl_ms: int | None = None
    """The time to live of what was written; None: for ever."""
    extra: tuple[tuple[str, pa.DataType], ...] = ()
    """Value columns that the user does not see."""

    def store(self, keys: tuple[tuple[str, pa.DataType], ...]) -> Store:
        """The store of the variable, for a grouping by these keys."""
        lifetime: Lifetime = FOREVER if self.ttl_ms is None else TimeToLive(self.ttl_ms * 1000, TimerClock.PROCESSING)
        written = ((WRITTEN, pa.int64()),) if self.ttl_ms is not None else ()
        more = tuple((f"m{i}", f.type) for i, f in enumerate(self.keys or ()))
        values = (*((f"p{i}", f.type) for i, f in enumerate(self.values)), *self.extra, *written)
        return Store(Layout((*keys, *more), values, has_sub=self.kind is Kind.LIST), lifetime=lifetime)


@dataclass(frozen=True)
class UserShape:
    """The columns, variables and clock of a user's code, under the user's names."""

    keys: pa.Schema
    rows: pa.Schema
    """The columns of the rows that the code gets, keys included."""
    output: pa.Schema
    variables: tuple[Variable, ...]
    interface: Interface
    time: TimeMode
    initial: pa.Schema | None = None
    """The columns of the initial state; None if there is none."""
    event_time: int | None = None
    """The position of the event time among the output columns, if the user named one."""
    name: str = "the processor"
    where: str = ""

    @property
    def key_columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        return tuple((f"k{i}", f.type) for i, f in enumerate(self.keys))

    @cached_property
    def payload(self) -> tuple[str, ...]:
        """The names of the columns that are not keys."""
        return tuple(f.name for f in self.rows if f.name not in self.keys.names)

    @cached_property
    def timers(self) -> str:
        """The name of the store of timers."""
        name = TIMERS
        while name in {store_name(each.name) for each in self.variables}:
            name += "_"
        return name

    def stores(self) -> dict[str, Store]:
        """All stores: one per variable, one for timers, and one for the rows of the initial state."""
        found = {store_name(each.name): each.store(self.key_columns) for each in self.variables}
        if self.time is not TimeMode.NONE:
            found[self.timers] = Store(Layout(self.key_columns, (), has_sub=True), lifetime=UNTIL_FIRED)
        if self.initial is not None:
            columns = tuple((f"c{i}", f.type) for i, f in enumerate(self.initial))
            found[MAIN] = Store(Layout(self.key_columns, columns, has_sub=True))
        return found


def store_name(variable: str) -> str:
    """The name of a variable's store, which becomes part of file names.

    >>> store_name("total"), store_name("my state")
    ('total', 'my_state-6d79207374617465')
    """
    return variable if re.fullmatch(r"\w+", variable) else f"{re.sub(r'[^0-9A-Za-z_]', '_', variable)}-{variable.encode().hex()}"


class Codec(Protocol):
    """Turns tuples of state values, as users write and read them, into what Arrow takes and gives."""

    def tuples(self, columns: list[pa.Array]) -> list[Values]:
        """One tuple per row, as Spark would give it to the user."""

    def plain(self, value: Any) -> Values:
        """A tuple that the user writes, without numpy and pandas scalars."""

    def order(self, keys: list[Values]) -> list[Values]:
        """Map keys in the order in which Spark's store iterates."""

    @property
    def to_arrow(self) -> tuple[Callable[[Any], Any] | None, ...]:
        """Per column the function from a value to what Arrow takes; None where they are the same."""


class Groups(Protocol):
    """The rows of a batch in the form of the user's interface, one group per key."""

    def keys(self) -> list[Any]:
        """The key of each group, as the user gets it."""

    def of(self, group: int) -> Iterator[Any]:
        """The rows of a group: frames or rows."""


class Output(Protocol):
    """Collects what the user's code emits."""

    def add(self, emitted: Any) -> None:
        """Take what a call returned. Runs generators."""

    def columns(self) -> list[pa.Array]:
        """All rows that were emitted, as columns of the output."""


class Front(Protocol):
    """PySpark's own classes, as kernels need them. It is pickled into the tasks."""

    def codec(self, variable: str, keys: bool = False) -> Codec:
        """The codec of a variable's values, or of its map keys."""

    def groups(self, columns: list[pa.Array], keys: list[pa.Array], starts: Any) -> Groups:
        """The rows of a batch, sorted by key; groups begin at the indices `starts`. `keys` has a row per group."""

    def initial_groups(self, columns: list[pa.Array], keys: list[pa.Array], starts: Any) -> Groups:
        """The rows of the initial state, likewise."""

    def rows_of_keys(self, keys: list[pa.Array]) -> list[Any]:
        """Keys as ``handleExpiredTimer`` gets them: one Row each."""

    def timer_values(self, now_ms: int, watermark_ms: int) -> Any:
        """A ``TimerValues``."""

    def expired(self, at_ms: int) -> Any:
        """An ``ExpiredTimerInfo``."""

    def group_state(self, value: Values | None, now_ms: int, watermark_ms: int, timed_out: bool) -> Any:
        """A ``GroupState``."""

    def outcome(self, state: Any) -> tuple[Values | None, bool, bool, int]:
        """Of a ``GroupState`` after a call: its value, True if updated, True if removed, and the timeout in ms or -1."""

    def no_rows(self) -> Any:
        """The empty frame that a function gets when a key times out."""

    def output(self) -> Output:
        """A new collector of output."""

    def running(self) -> Any:
        """A context manager for the time in which user code runs."""
