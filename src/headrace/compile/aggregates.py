"""Compiling ``groupBy(...).agg(...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import catalyst, event_time
from headrace.compile.functions import REPLACED, Context, Piece, take_apart
from headrace.compile.plan import StatefulPlan, StoreReader, hash_of
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.config import Config
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import AggregateNode
from headrace.operators.aggregate import RunningAggregate
from headrace.operators.description import describe
from headrace.operators.kernel import MAIN, Operator, OutputMode
from headrace.operators.windowed import WINDOW, WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.state.layout import SUB, Layout, Policy

_KEY = "__headrace_key{}"
_TIME = "__headrace_time"
_WINDOW_HINT = "write F.window(time, ...) itself among the grouping columns, not as SQL text and not in a select before"
_NO_KEY = "k0"
"""An aggregate of the whole stream has a key that is always the same, so that nothing else is special about it."""


@dataclass(frozen=True)
class _Key:
    """A grouping column."""

    name: str
    """As the user sees it."""
    internal: str
    type: T.DataType
    is_event_time: bool


def compile_aggregate(node: AggregateNode, config: Config) -> StatefulPlan:
    session = node.source.sparkSession
    staged, keys = _with_keys(node)
    analysed = catalyst.checked(node.where, lambda: staged.groupBy(*node.keys).agg(*node.aggregates))
    tree = catalyst.analyzed(analysed)
    if catalyst.class_name(tree) != "Aggregate":
        raise UnsupportedError(where=node.where, found="a function over the aggregates that gives several rows or looks at other groups")
    groups = [_without_alias(g) for g in catalyst.items(tree.groupingExpressions())]
    results = list(catalyst.items(tree.aggregateExpressions()))[-len(node.aggregates) :]
    calls = _calls(results)
    context = Context(session, *_event_time(staged), ansi=session.conf.get("spark.sql.ansi.enabled") == "true")
    pieces = {text: take_apart(call, context) for text, call in calls.items()}

    window, sub, time_type = _window(node, staged, keys, config)
    stored = [k for k in keys if not (k.is_event_time and node.window is None)] if sub is not None and node.window is None else keys
    names = [f"k{i}" for i in range(len(stored))] or [_NO_KEY]
    key_types = [k.type for k in stored] or [T.ByteType()]
    key_columns = [encode(normalize(F.col(k.internal), k.type), k.type) for k in stored] or [F.lit(0).cast("byte")]
    value_types = [kind for piece in pieces.values() for kind in piece.partial.types]
    layout = Layout(
        keys=tuple((name, arrow_type(kind)) for name, kind in zip(names, key_types, strict=True)),
        values=tuple((f"p{i}", kind) for i, kind in enumerate(value_types)),
        has_sub=sub is not None,
        policy=Policy.REPLACE if sub is None else Policy.COMBINE,
    )
    partials = tuple(piece.partial for piece in pieces.values())
    operator: Operator = RunningAggregate(layout, partials, not keys) if window is None else WindowedAggregate(layout, partials, window)

    inputs, row, ones, many = _columns(list(pieces.values()))
    subs = [] if sub is None else [sub.alias(SUB)]
    source = staged if node.window is None else staged.filter(F.col(_TIME).isNotNull())
    selected = source.select(*[c.alias(name) for c, name in zip(key_columns, names, strict=True)], *subs, *inputs)

    finish = _finisher(session, node, keys, names, stored, window, time_type, results, groups, calls, pieces)
    shown = _finisher(session, node, keys, names, stored, window, time_type, results, groups, calls, pieces, pane_only=True)
    texts = [str(call.sql()) for call in calls.values()]
    schema = _result_schema(node)
    kernel_schema = _kernel_schema(names, stored, window, list(pieces.values()))
    return StatefulPlan(
        operator_id="aggregate",
        operator=operator,
        inputs=(node.source,),
        selected=selected,
        keyed=(*names, *([SUB] if sub is not None else [])),
        hashed=hash_of(names if stored else [], config.hashBits),
        row=tuple(row),
        ones=tuple(ones),
        counts_rows=ones[0] if ones else None,
        many=None if many is None else tuple(many),
        kernel_schema=kernel_schema,
        finish=finish,
        schema=schema,
        readers={MAIN: StoreReader(kernel_schema, shown)},
        event_time_in_key=_has_watermark(node, staged, keys),
        modes=_modes(node, staged, keys),
        description={
            "operator": "aggregate",
            "keys": [f"{k.name}: {k.type.simpleString()}" for k in keys],
            "window": None if window is None else str(window),
            "aggregates": [str(e.name()) for e in results],
            "calls": texts,
        },
        kernels={MAIN: describe(operator, keys=[k.name for k in stored], sub=_sub_name(node, keys), calls=texts)},
    )


def _sub_name(node: AggregateNode, keys: list[_Key]) -> str | None:
    """What the sub-key is to the user: where a pane starts, or the event time among the keys."""
    if node.window is not None:
        return "window.start" if node.window.size_us == node.window.advance_us else "pane"
    return next((k.name for k in keys if k.is_event_time), None)


def _with_keys(node: AggregateNode) -> tuple[DataFrame, list[_Key]]:
    """The source with its grouping columns computed under names of ours."""
    columns = list(node.keys)
    named = catalyst.checked(node.where, lambda: node.source.select(*columns)) if columns else None
    internal = [c.alias(_KEY.format(i)) for i, c in enumerate(columns)]
    times = [] if node.window is None else [node.window.time.alias(_TIME)]
    staged = catalyst.checked(node.where, lambda: node.source.select("*", *internal, *times))
    keys = []
    if named is not None:
        for i, f in enumerate(named.schema.fields):
            check_key(f.dataType, f"{node.where}, key {f.name!r}")
            name = _KEY.format(i)
            timed = catalyst.watermark_delay_ms(staged, name) is not None
            if timed and isinstance(f.dataType, T.StructType):
                raise UnsupportedError(where=node.where, found=f"a window computed beforehand, {f.name!r}", hint=_WINDOW_HINT)
            keys.append(_Key(f.name, name, f.dataType, timed))
    return staged, keys


def _calls(results: list[Any]) -> dict[str, Any]:
    """The distinct aggregate calls in the result expressions, by their text."""
    found: dict[str, Any] = {}
    for result in results:
        for each in catalyst.walk(result):
            if catalyst.class_name(each) == "AggregateExpression":
                found.setdefault(_text(each), each)
    return found


def _text(call: Any) -> str:
    # Equal calls have equal texts, expression ids included, once their own result ids are left out. Only SQL tells 1 from '1'.
    canonical = call.canonicalized()
    return f"{canonical.toString()} {canonical.sql()}"


def _without_alias(expression: Any) -> Any:
    return expression.child() if catalyst.class_name(expression) == "Alias" else expression


def _event_time(frame: DataFrame) -> tuple[Column | None, T.DataType]:
    for output in catalyst.items(catalyst.analyzed(frame).output()):
        if output.metadata().contains(catalyst.WATERMARK_KEY):
            return catalyst.column(frame.sparkSession, output), catalyst.data_type(output)
    return None, T.TimestampType()


def _window(
    node: AggregateNode, staged: DataFrame, keys: list[_Key], config: Config
) -> tuple[TimeWindow | None, Column | None, T.DataType | None]:
    """The kernel's window, the sub-key column, and the type of the time."""
    if node.window is not None:
        kind = staged.schema[_TIME].dataType
        window = TimeWindow(node.window.size_us, node.window.advance_us, node.window.offset_us)
        return window, event_time.pane(event_time.micros(F.col(_TIME), kind), window), kind
    timed = [k for k in keys if k.is_event_time]
    if not timed:
        return None, None, None
    if len(timed) > 1:
        raise UnsupportedError(where=node.where, found=f"several event times among the keys: {[k.name for k in timed]}")
    window = TimeWindow(size_us=0, advance_us=1)
    # A row without a time is never late and never due.
    never = F.lit(2**62).cast("long")
    return window, F.coalesce(event_time.micros(F.col(timed[0].internal), timed[0].type), never), timed[0].type


def _columns(pieces: list[Piece]) -> tuple[list[Column], list[Column], list[str], list[Column] | None]:
    """Inputs, partials of a row, names of partials that are 1, partials of many rows; named i0.. and p0.."""
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


def _finisher(
    session: SparkSession,
    node: AggregateNode,
    keys: list[_Key],
    names: list[str],
    stored: list[_Key],
    window: TimeWindow | None,
    time_type: T.DataType | None,
    results: list[Any],
    groups: list[Any],
    calls: dict[str, Any],
    pieces: dict[str, Piece],
    pane_only: bool = False,
) -> Callable[[DataFrame], DataFrame]:
    """From kernel rows (k0.., w, p0..) to the user's columns, in the user's order."""
    finished: dict[str, Column] = {}
    at = 0
    for text, piece in pieces.items():
        columns = [F.col(f"p{at + j}") for j in range(len(piece.types))]
        at += len(columns)
        finished[text] = _evaluate(session, calls[text], piece, columns)

    outputs: list[Column] = []
    by_internal = {k.internal: F.col(name) for k, name in zip(stored, names, strict=False)}
    for key in keys:
        if key.internal in by_internal:
            value = decode(by_internal[key.internal], key.type)
        else:
            assert time_type is not None
            value = F.when(F.col(WINDOW) != 2**62, event_time.from_micros(F.col(WINDOW), time_type)).cast(key.type)
        outputs.append(value.alias(key.name))
    to_expression: Any = session._jvm.org.apache.spark.sql.classic.ExpressionUtils.expression  # type: ignore[union-attr]
    shown_keys = [_without_alias(to_expression(c._jc)) for c in outputs]

    def replaced(expression: Any) -> Any | None:
        """An aggregate by its result; a grouping column, which a result may use too, by the key."""
        if catalyst.class_name(expression) == "AggregateExpression":
            return to_expression(finished[_text(expression)]._jc)
        return next((key for group, key in zip(groups, shown_keys, strict=True) if group.semanticEquals(expression)), None)

    if node.window is not None:
        assert window is not None
        assert time_type is not None
        start = event_time.from_micros(F.col(WINDOW), time_type).alias("start")
        # State is kept by pane; where panes are parts of windows, only their start is certain.
        end = event_time.from_micros(F.col(WINDOW) + F.lit(window.size_us), time_type).alias("end")
        shown = F.struct(start, end) if window.one_pane_each or not pane_only else F.struct(start)
        outputs.insert(node.window_at, shown.alias(node.window.name if window.one_pane_each or not pane_only else "pane"))
    for result in results:
        outputs.append(catalyst.column(session, catalyst.rewrite(session, _without_alias(result), replaced)).alias(result.name()))
    return lambda frame: frame.select(*outputs)


def _evaluate(session: SparkSession, call: Any, piece: Piece, columns: list[Column]) -> Column:
    if piece.finish is not None:
        return piece.finish(columns)
    assert piece.buffers is not None
    function = call.aggregateFunction()
    while hasattr(function, "replacement") and catalyst.class_name(function) in REPLACED:
        function = function.replacement()
    jvm: Any = session._jvm
    to_expression = jvm.org.apache.spark.sql.classic.ExpressionUtils.expression
    by_id = {a.exprId().toString(): a.name() for a in catalyst.items(function.aggBufferAttributes())}
    buffers = piece.buffers(columns)

    def replaced(expression: Any) -> Any | None:
        if catalyst.class_name(expression) != "AttributeReference":
            return None
        name = by_id.get(expression.exprId().toString())
        return to_expression(buffers[name]._jc) if name in buffers else None

    return catalyst.column(session, catalyst.rewrite(session, function.evaluateExpression(), replaced))


def _result_schema(node: AggregateNode) -> T.StructType:
    """What Spark itself says the result looks like."""
    grouping: list[Column] = list(node.keys)
    if node.window is not None:
        w = node.window
        micro = "{} microseconds".format
        column = F.window(w.time, micro(w.size_us), micro(w.advance_us), micro(w.offset_us)).alias(w.name)
        grouping.insert(node.window_at, column)
    return catalyst.checked(node.where, lambda: node.source.groupBy(*grouping).agg(*node.aggregates)).schema


def _has_watermark(node: AggregateNode, staged: DataFrame, keys: list[_Key]) -> bool:
    if node.window is not None:
        return catalyst.watermark_delay_ms(staged, _TIME) is not None
    return any(k.is_event_time for k in keys)


def _modes(node: AggregateNode, staged: DataFrame, keys: list[_Key]) -> tuple[OutputMode, ...]:
    if _has_watermark(node, staged, keys):
        return (OutputMode.APPEND, OutputMode.UPDATE, OutputMode.COMPLETE)
    return (OutputMode.UPDATE, OutputMode.COMPLETE)


def check_mode(plan: StatefulPlan, mode: OutputMode, where: str) -> None:
    if mode in plan.modes:
        return
    if plan.operator_id == "aggregate":
        raise QueryError(
            "append mode emits a group once it can no longer change, so the group must have an event time with a watermark",
            where=where,
            found="an aggregate without one",
            hint="call withWatermark(column, delay) before groupBy and group by F.window(column, ...), or use outputMode('update')",
        )
    raise QueryError(where=where, wanted=" or ".join(plan.modes), found=f"output mode {mode}")


def _kernel_schema(names: list[str], stored: list[_Key], window: TimeWindow | None, pieces: list[Piece]) -> T.StructType:
    kinds = [transport_type(key.type) for key in stored] or [T.ByteType()]
    fields = [T.StructField(name, kind) for name, kind in zip(names, kinds, strict=True)]
    if window is not None:
        fields.append(T.StructField(WINDOW, T.LongType()))
    types = [kind for piece in pieces for kind in piece.types]
    return T.StructType(fields + [T.StructField(f"p{i}", kind) for i, kind in enumerate(types)])
