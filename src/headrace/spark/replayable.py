"""What in a streaming DataFrame may give other rows when a batch is read again (``reread.py``): sources, expressions, static inputs.

All of it is decided before the query starts, from the analysed plan. What cannot be known is taken on trust: that a source of another
vendor keeps its rows, and that users' functions are deterministic unless they say that they are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from headrace.spark.gateway import class_name, class_named, items, java_session, unpickled
from headrace.spark.plans import analyzed
from headrace.spark.streaming import RELATIONS, relations, source_name, source_options
from headrace.spark.trees import CURRENT, SUBQUERY, contains_any, patterns, walk

WITHOUT_ZONE = ("CurrentTimestamp", "CurrentTimestampNanos")
"""Expressions for the time of the batch that depend on no time zone."""
BATCH_TIMES = (*WITHOUT_ZONE, "CurrentDate", "LocalTimestamp", "LocalTimestampNanos")
"""Expressions that have the time of the batch in a streaming query. Others that read the clock have not."""
CLOCKS = ("Now", "CurrentTime")
"""Expressions that read the clock whenever Spark plans a batch."""
FILE_NAME = "InputFileName"
"""An expression that Spark calls nondeterministic, but that is the same for the same files."""
BY_TASK = ("MonotonicallyIncreasingID", "SparkPartitionID", "InputFileBlockStart", "InputFileBlockLength")
"""Expressions that depend on how Spark divides the rows of a batch into tasks."""
SOCKET = "TextSocketTable"
FORGETFUL = {SOCKET: "the socket source", "MemoryStreamTable": "the memory source"}
"""Tables of sources that discard their rows once Spark has committed them."""
PYTHON_TABLE = "PythonTable"
SAMPLE = "Sample"
FIXED_LEAVES = ("LocalRelation", "Range", "OneRowRelation", "CTERelationRef")
"""Static leaves whose rows are in the plan itself."""
_RANDOM = "org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed"
_SUBQUERY = "org.apache.spark.sql.catalyst.expressions.PlanExpression"


def unreplayable_sources(frame: DataFrame) -> list[str]:
    """A sentence for each source of a streaming DataFrame that cannot give the rows of earlier batches again."""
    found = (_why_not(frame.sparkSession, relation) for relation in relations(frame))
    return [why for why in dict.fromkeys(found) if why is not None]


def forgetful_sources(frame: DataFrame) -> list[str]:
    """A sentence for each source whose earlier rows nobody has after a restart. Files that were cleaned up may still be somewhere."""
    found = (_forgets(frame.sparkSession, relation) for relation in relations(frame))
    return [why for why in dict.fromkeys(found) if why is not None]


def sources_without_restart(frame: DataFrame) -> list[str]:
    """A sentence for each source with which a query cannot go on from its checkpoint, because offsets of another start mean nothing to it.

    Spark runs an empty batch then, and fails with "Offsets committed out of order".
    """
    tables = (class_name(each.table()) for each in relations(frame) if class_name(each) == "StreamingRelationV2")
    return [f"{FORGETFUL[each]} counts its rows from 0 with every start" for each in dict.fromkeys(tables) if each == SOCKET]


def _why_not(session: SparkSession, relation: Any) -> str | None:
    options = {name.lower(): value for name, value in source_options(relation).items()}
    cleaning = options.get("cleansource", "off").lower()
    if cleaning != "off":
        verb = "archives" if cleaning == "archive" else "deletes"
        return f"{source_name(relation)} {verb} files that were processed: option cleanSource is {cleaning!r}"
    return _forgets(session, relation)


def _forgets(session: SparkSession, relation: Any) -> str | None:
    if class_name(relation) != "StreamingRelationV2":
        return None
    table = class_name(relation.table())
    if table in FORGETFUL:
        return f"{FORGETFUL[table]} discards rows that were processed"
    if table == PYTHON_TABLE and not _has_stream_reader(session, str(relation.table().name())):
        return f"the Python data source {relation.table().name()!r} has a simpleStreamReader, of which Spark can read only the last batch"
    return None


def _has_stream_reader(session: SparkSession, name: str) -> bool:
    """True if a user's data source in Python has a ``streamReader``. Spark asks the other kind of reader for its newest rows only."""
    source = java_session(session).sessionState().dataSourceManager().lookupDataSource(name)
    users_class: type[DataSource] = unpickled(session, source.dataSourceCls())
    return users_class.streamReader is not DataSource.streamReader


def nondeterministic_parts(frame: DataFrame) -> list[str]:
    """A sentence for each expression of a streaming DataFrame whose value may differ when a batch is computed again.

    ``current_timestamp()``, ``current_date()`` and ``localtimestamp()`` are fine: they have the time of the batch, which Spark's log keeps.
    """
    finder = _Finder(frame.sparkSession)
    return list(dict.fromkeys(finder.in_plan(analyzed(frame), in_subquery=False)))


class _Finder:
    """Looks for expressions whose value may differ."""

    def __init__(self, session: SparkSession) -> None:
        self._momentary = patterns(session, (CURRENT, SUBQUERY))
        self._random, self._subquery = class_named(session, _RANDOM), class_named(session, _SUBQUERY)

    def in_plan(self, plan: Any, in_subquery: bool) -> Iterator[str]:
        for node in walk(plan):
            if class_name(node) == SAMPLE:
                yield "sample(...) of a static DataFrame takes other rows after a restart, unless it has a seed"
            for each in items(node.expressions()):
                yield from self._in_expression(each, in_subquery)

    def _in_expression(self, expression: Any, in_subquery: bool) -> Iterator[str]:
        if expression.deterministic() and not contains_any(expression, self._momentary):
            return
        if self._subquery.isInstance(expression):
            yield from self.in_plan(expression.plan(), in_subquery=True)
        why = self._why(expression, in_subquery)
        if why is not None:
            yield f"{expression.sql()} {why}"
        for child in items(expression.children()):
            yield from self._in_expression(child, in_subquery)

    def _why(self, expression: Any, in_subquery: bool) -> str | None:
        """What makes an expression itself, and not one of its parts, give different values."""
        kind = class_name(expression)
        if kind in CLOCKS:
            return "reads the clock; use current_timestamp(), which is the time of the batch"
        if kind in BATCH_TIMES:
            return "reads the clock: in a subquery Spark does not use the time of the batch" if in_subquery else None
        if expression.deterministic() or kind == FILE_NAME or any(not child.deterministic() for child in items(expression.children())):
            return None
        if kind in BY_TASK:
            return "depends on how Spark divides the rows into tasks"
        if self._random.isInstance(expression):
            return "is random: Spark takes a new seed for every batch, also if it was given one"
        return "is not deterministic"


def static_inputs(frame: DataFrame) -> list[str]:
    """The static inputs of a streaming DataFrame that are read anew for every batch, such as the tables of stream-static joins.

    If their rows change, a batch that is computed again gives other rows. Rows that are in the plan itself cannot change.
    """
    return list(dict.fromkeys(_static_leaves(frame.sparkSession, analyzed(frame))))


def _static_leaves(session: SparkSession, plan: Any) -> Iterator[str]:
    subqueries, wanted = class_named(session, _SUBQUERY), patterns(session, (SUBQUERY,))
    for node in walk(plan):
        kind = class_name(node)
        if not node.children().size() and kind not in (*RELATIONS, *FIXED_LEAVES):
            yield f"{kind} with columns {', '.join(str(column.name()) for column in items(node.output()))}"
        for each in items(node.expressions()) if contains_any(node, wanted) else ():
            for part in walk(each):
                if subqueries.isInstance(part):
                    yield from _static_leaves(session, part.plan())
