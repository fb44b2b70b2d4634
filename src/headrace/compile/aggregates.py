"""Compiling ``groupBy(...).agg(...)``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.functions import take_apart
from headrace.compile.picks import Parts, together
from headrace.compile.pieces import Context, Piece
from headrace.compile.plan import Combiner, Description, Finish, Input, Refusal, Results, StatefulPlan, StoreReader, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.compile.windowing import NEVER, TIME, UNTIL, Key, Windowing, windowing
from headrace.config import Config
from headrace.errors import UnsupportedError
from headrace.graph.nodes import AggregateNode
from headrace.graph.windows import CountSpec, SessionSpec, WindowSpec
from headrace.operators.counted import CountAggregate
from headrace.operators.description import ColumnNames, value_names
from headrace.operators.kernel import Operator, OutputMode
from headrace.operators.settled import Gathers
from headrace.operators.windowed import WINDOW
from headrace.spark import expressions, gateway, plans
from headrace.spark.aggregation import Aggregation, aggregation_of, event_time_of
from headrace.spark.types import from_arrow
from headrace.spark.words import texts
from headrace.state.layout import HASH, SUB

_KEY = "__headrace_key{}"
_WINDOW_HINT = "write F.window(time, ...) itself among the grouping columns, not as SQL text and not in a select before"
_NEVER_FINAL = Refusal(
    "append mode emits a group once it can no longer change, so the group must have an event time with a watermark",
    found="an aggregate without one",
    hint="call withWatermark(column, delay) before groupBy and group by F.window(column, ...)",
)
_NO_KEY = "k0"
"""The key column of an aggregate without keys. It is the same in all rows, so the kernel needs no special case."""


@dataclass(frozen=True)
class Analysed:
    """What Spark's analysis and ours make of an aggregate."""

    staged: DataFrame
    """The source with its grouping columns under internal names."""
    keys: list[Key]
    aggregation: Aggregation
    pieces: dict[str, Piece]
    parts: Parts
    kind: Windowing

    @property
    def stored(self) -> list[Key]:
        """The keys that are key columns of the state."""
        return [k for k in self.keys if k.internal != self.kind.time_key]


def analyse(node: AggregateNode) -> Analysed:
    """Let Spark resolve the calls of an aggregate, and divide them into partials."""
    session = node.source.sparkSession
    staged, keys = _with_keys(node)
    analysed = gateway.checked(node.where, lambda: staged.groupBy(*node.keys).agg(*node.aggregates))
    aggregation = aggregation_of(analysed, len(node.aggregates))
    if aggregation is None:
        raise UnsupportedError(where=node.where, found="a function over the aggregates that gives several rows or looks at other groups")
    time, time_type = event_time_of(staged) or (None, T.TimestampType())
    context = Context(session, time, time_type, ansi=session.conf.get("spark.sql.ansi.enabled") == "true")
    pieces = {text: take_apart(call, context) for text, call in aggregation.calls.items()}
    return Analysed(staged, keys, aggregation, pieces, together(pieces), windowing(node, staged, keys))


@compiles(AggregateNode)
def compile_aggregate(node: AggregateNode, config: Config) -> StatefulPlan:
    """The plan of an aggregate: Spark resolves the calls, and each becomes partials that the kernel merges."""
    found = analyse(node)
    staged, keys, aggregation, pieces, parts, kind = found.staged, found.keys, found.aggregation, found.pieces, found.parts, found.kind
    stored = found.stored
    names = [f"k{i}" for i in range(len(stored))] or [_NO_KEY]
    key_types = [k.type for k in stored] or [T.ByteType()]
    key_columns = [encode(normalize(F.col(k.internal), k.type), k.type) for k in stored] or [F.lit(0).cast("byte")]
    value_types = [each for piece in parts.pieces for each in piece.partial.types]
    operator = kind.make(
        tuple((name, arrow_type(each)) for name, each in zip(names, key_types, strict=True)),
        tuple((f"p{i}", each) for i, each in enumerate(value_types)),
        tuple(piece.partial for piece in parts.pieces),
    )

    inputs, row, ones, many = _columns(parts.pieces)
    subs = [] if kind.sub is None else [kind.sub.alias(SUB)]
    source = staged.filter(F.col(TIME).isNotNull()) if TIME in staged.columns else staged
    # As in Spark: a row whose gap is zero, negative or null is in no session.
    source = source.filter(F.col(UNTIL) > F.col(TIME)) if UNTIL in staged.columns else source
    extra = kind.extra
    selected = source.select(*[c.alias(name) for c, name in zip(key_columns, names, strict=True)], *subs, *extra, *inputs)

    place = None if node.window is None else (node.window_at, node.window.name)
    finisher = _Finisher(aggregation, place, keys, stored, names, kind, pieces, parts)
    call_texts = {text: call.words(node.source) for text, call in aggregation.calls.items()}
    kernel_schema = kind.schema(names, [transport_type(each) for each in key_types], parts.types)
    schema = _result_schema(node, kind)
    return StatefulPlan(
        kind="aggregate",
        input=Input(
            frames=(node.source,),
            selected=selected,
            keyed=(*names, *([SUB] if kind.sub is not None else [])),
            hashed=hash_of(names if stored else [], config.hashBits),
            values=(*(F.col(name) for name in selected.columns[len(names) + len(subs) :][: len(extra)]), *row),
            ones=tuple(ones),
        ),
        operator=operator,
        results=Results(kernel_schema, finisher.columns(), schema, tuple(schema.names[: len(keys) + (place is not None)])),
        readers=_readers(operator, finisher, kernel_schema, call_texts),
        description=_description(node, keys, kind, list(aggregation.names), list(call_texts.values())),
        timing=Timing(kind.timed, kind.modes, refusals={OutputMode.APPEND: _NEVER_FINAL, **kind.refusals}),
        settle=_settle(parts, kind) if isinstance(operator, Gathers) else None,
        combiner=None if many is None or not kind.combines else Combiner(tuple(many), counts_rows=ones[0] if ones else None),
    )


def _settle(parts: Parts, kind: Windowing) -> Finish | None:
    """Merges in Spark what the kernel only puts side by side; None if there is nothing of this kind."""
    if not any(piece.settle for piece in parts.pieces):
        return None
    settled: dict[str, Column] = {}
    at = 0
    for piece in parts.pieces:
        names = [f"p{at + i}" for i in range(len(piece.types))]
        at += len(names)
        if piece.settle is not None:
            settled.update(zip(names, piece.settle([F.col(name) for name in names]), strict=True))
    return lambda rows: rows.select(*[settled[name].alias(name) if name in settled else F.col(name) for name in rows.columns])


def _description(node: AggregateNode, keys: list[Key], kind: Windowing, aggregates: list[str], calls: list[str]) -> Description:
    shown: dict[str, object] = {
        "operator": "aggregate",
        "keys": [f"{k.name}: {k.type.simpleString()}" for k in keys],
        "window": kind.text,
        "aggregates": aggregates,
        "calls": calls,
    }
    resolved = partial(_resolved, node.source, [*node.keys, *_times(node).values()])
    return Description(shown, only_shown=("aggregates",), resolved=resolved)


def _times(node: AggregateNode) -> dict[str, Column]:
    """The columns that a window is made of, by internal name."""
    match node.window:
        case WindowSpec(time=time) | SessionSpec(time=time, until=None):
            return {TIME: time}
        case SessionSpec(time=time, until=Column() as until):
            return {TIME: time, UNTIL: until}
    return {}


def _resolved(source: DataFrame, keys: list[Column]) -> dict[str, object]:
    return {"keys": texts(source, keys)}


def _with_keys(node: AggregateNode) -> tuple[DataFrame, list[Key]]:
    """The source with its grouping columns computed and renamed to internal names, and what is known of each."""
    columns = list(node.keys)
    named = gateway.checked(node.where, lambda: node.source.select(*columns)) if columns else None
    internal = [c.alias(_KEY.format(i)) for i, c in enumerate(columns)]
    times = [column.alias(name) for name, column in _times(node).items()]
    staged = gateway.checked(node.where, lambda: node.source.select("*", *internal, *times))
    keys = []
    if named is not None:
        for i, f in enumerate(named.schema.fields):
            check_key(f.dataType, f"{node.where}, key {f.name!r}")
            name = _KEY.format(i)
            timed = plans.watermark_delay_ms(staged, name) is not None
            if timed and isinstance(f.dataType, T.StructType) and node.input.origin is None and not node.windows_as_keys:
                raise UnsupportedError(where=node.where, found=f"a window computed beforehand, {f.name!r}", hint=_WINDOW_HINT)
            keys.append(Key(f.name, name, f.dataType, timed))
    return staged, keys


def _columns(pieces: list[Piece]) -> tuple[list[Column], list[Column], list[str], list[Column] | None]:
    """The columns of all partials.

    Returns the input columns (i0, i1, ...), the partials of one row (p0, p1, ...) without those that are always 1, the names of these,
    and the partials of many rows; None if rows cannot be combined.
    """
    inputs: list[Column] = []
    row: list[Column] = []
    ones: list[str] = []
    many: list[Column] | None = []
    at = 0
    for piece in pieces:
        own = [f"i{len(inputs) + j}" for j in range(len(piece.inputs))]
        mine = [F.col(name) for name in own]
        inputs.extend(c.alias(name) for name, c in zip(own, piece.inputs, strict=True))
        names = [f"p{at + j}" for j in range(len(piece.types))]
        at += len(names)
        for name, kind, column in zip(names, piece.types, piece.row(mine), strict=True):
            if column is None:
                ones.append(name)
            else:
                row.append(column.cast(kind).alias(name))
        if piece.many is None:
            many = None
        elif many is not None:
            many.extend(c.cast(kind).alias(n) for c, kind, n in zip(piece.many(mine), piece.types, names, strict=True))
    return inputs, row, ones, many


@dataclass(frozen=True)
class _Finisher:
    """Turns kernel rows (k0, ..., the window's columns, p0, ...) into the user's columns, in the user's order."""

    aggregation: Aggregation
    window: tuple[int, str] | None
    """The window's place among the grouping columns, and its name; None without a window."""
    keys: list[Key]
    stored: list[Key]
    names: list[str]
    kind: Windowing
    pieces: dict[str, Piece]
    parts: Parts

    def columns(self, state: bool = False) -> Finish:
        """The function that selects the user's columns. If `state`, the window is shown as in the state: a pane, or a part of a session."""
        named = self.parts.columns()
        finished = {text: self._result(text, piece, [F.col(name) for name in named[text]]) for text, piece in self.pieces.items()}
        keys = [self._key(key) for key in self.keys]
        outputs = [column.alias(key.name) for column, key in zip(keys, self.keys, strict=True)]
        if self.window is not None and self.kind.shown is not None:
            at, usual = self.window
            shown, name = (self.kind.shown_state if state else None) or (self.kind.shown, usual)
            outputs.insert(at, shown.alias(name))
        outputs += self.aggregation.results(keys, finished)
        return lambda frame: frame.select(*outputs)

    def _result(self, text: str, piece: Piece, columns: list[Column]) -> Column:
        """The result of a call, from its partial columns."""
        if piece.finish is not None:
            return piece.finish(columns)
        assert piece.buffers is not None
        return self.aggregation.calls[text].result(self.aggregation.session, piece.buffers(columns))

    def _key(self, key: Key) -> Column:
        if key.internal == self.kind.time_key:
            assert self.kind.time_type is not None
            return F.when(F.col(WINDOW) != NEVER, event_time.from_micros(F.col(WINDOW), self.kind.time_type)).cast(key.type)
        return decode(F.col(self.names[self.stored.index(key)]), key.type)


def _readers(operator: Operator, finisher: _Finisher, kernel_schema: T.StructType, texts: dict[str, str]) -> dict[str, StoreReader]:
    """How each store is shown: like results if it holds partials by key, otherwise as it is. `texts` are the calls in words."""
    kind, parts, stored = finisher.kind, finisher.parts, finisher.stored
    served = [tuple(texts[call] for call in each) for each in parts.calls]
    readers = {}
    for name, store in operator.stores.items():
        values = value_names(store.layout, [piece.partial for piece in parts.pieces], served)
        names = ColumnNames(tuple(k.name for k in stored), values, kind.sub_names.get(name))
        if isinstance(operator, CountAggregate):
            schema = T.StructType([T.StructField(f.name, from_arrow(f.type)) for f in store.layout.schema if f.name != HASH])
            keys = [decode(F.col(k), key.type).alias(key.name) for k, key in zip(finisher.names, stored, strict=False)]
            others = [c for c in schema.names if c not in finisher.names]
            readers[name] = StoreReader(schema, _selecting([*keys, *(F.col(c) for c in others)]), names)
        else:
            # The columns are only built when a user looks at the state, which is rare.
            readers[name] = StoreReader(kernel_schema, lambda frame: finisher.columns(state=True)(frame), names)
    return readers


def _selecting(columns: list[Column]) -> Finish:
    return lambda frame: frame.select(*columns)


def _result_schema(node: AggregateNode, kind: Windowing) -> T.StructType:
    """The user's columns, as Spark's own analysis of the aggregate gives them."""
    grouping: list[Column] = list(node.keys)
    micro = "{} microseconds".format
    w = node.window
    if isinstance(w, WindowSpec):
        grouping.insert(node.window_at, F.window(w.time, micro(w.size_us), micro(w.advance_us), micro(w.offset_us)).alias(w.name))
    elif isinstance(w, SessionSpec):
        # The gap is no part of the type.
        grouping.insert(node.window_at, F.session_window(w.time, micro(w.gap_us or 1)).alias(w.name))
    schema: T.StructType = gateway.checked(node.where, lambda: node.source.groupBy(*grouping).agg(*node.aggregates)).schema
    if isinstance(w, CountSpec):
        time = [T.StructField(name, kind.time_type or T.TimestampType()) for name in ("start", "end")] if kind.timed else []
        struct = T.StructType([*time, T.StructField("number", T.LongType(), False)])
        # Marked as Spark marks its windows, so that F.window_time works on it.
        marks = {expressions.WATERMARK_KEY: 0, "spark.timeWindow": True} if kind.timed else {}
        fields = list(schema.fields)
        fields.insert(node.window_at, T.StructField(w.name, struct, False, marks))
        schema = T.StructType(fields)
    return schema
