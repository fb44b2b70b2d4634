"""Reading and rewriting Spark's analysed expressions through py4j.

Spark resolves the user's columns itself; Headrace reads the outcome. Everything that touches Catalyst's classes is here, so that a new
Spark version is one file to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

from headrace.errors import QueryError, require

WATERMARK_KEY = "spark.watermarkDelayMs"

T = TypeVar("T")


def items(seq: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (seq.apply(i) for i in range(seq.size()))


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def walk(node: Any) -> Iterator[Any]:
    """A tree's nodes, parents first."""
    yield node
    for child in items(node.children()):
        yield from walk(child)


def rewrite(session: SparkSession, node: Any, replacement: Callable[[Any], Any | None]) -> Any:
    """The tree with every node for which ``replacement`` gives one replaced."""
    new = replacement(node)
    if new is not None:
        return new
    children = list(items(node.children()))
    if not children:
        return node
    rewritten = [rewrite(session, child, replacement) for child in children]
    if all(a is b for a, b in zip(children, rewritten, strict=True)):
        return node
    return node.withNewChildren(session._jvm.PythonUtils.toSeq(rewritten))  # type: ignore[union-attr]


def column(session: SparkSession, expression: Any) -> Column:
    """A Catalyst expression as a PySpark column."""
    jvm: Any = session._jvm
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def text(expression: Any) -> str:
    """Equal for equal expressions, expression ids included, once their own result ids are left out. Only SQL tells 1 from '1'."""
    canonical = expression.canonicalized()
    return f"{canonical.toString()} {canonical.sql()}"


def folded(session: SparkSession, constant: Column) -> Column:
    """A constant expression as the literal it amounts to: what is worked out here need not be in every plan that uses it."""
    optimized = session.range(1).select(constant)._jdf.queryExecution().optimizedPlan()
    return column(session, optimized.projectList().apply(0).child())


def attribute(session: SparkSession, name: str) -> Any:
    """A Catalyst attribute that will be looked up by name."""
    jvm: Any = session._jvm
    return jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute(jvm.PythonUtils.toSeq([name]))


def quoted(name: str) -> str:
    """A column's name as Spark's parser reads it back, whatever characters are in it: unquoted, a dot would lead into a struct.

    >>> quoted("a.b"), quoted("a`b")
    ('`a.b`', '`a``b`')
    """
    return "`" + name.replace("`", "``") + "`"


def data_type(expression: Any) -> DataType:
    return _parse_datatype_json_string(expression.dataType().json())


def analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def optimized(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().optimizedPlan()


MOMENTARY = ("CURRENT_LIKE", "PLAN_EXPRESSION")
"""Patterns of expressions whose meaning is that of the moment when a plan is optimised: the time, results of queries of their own."""

_ROWS_AT_HAND = {"LogicalRDD", "LocalRelation", "Range", "OneRowRelation"}


def patterns(session: SparkSession, names: tuple[str, ...]) -> list[Any]:
    jvm: Any = session._jvm
    return [getattr(jvm.org.apache.spark.sql.catalyst.trees.TreePattern, name)() for name in names]


def can_be_optimized_early(session: SparkSession, plan: Any) -> bool:
    """Whether the optimiser makes the same of a plan today and tomorrow. Of tables and files it may keep what they held at that moment."""
    if not plan.deterministic() or any(plan.containsPattern(each) for each in patterns(session, MOMENTARY)):
        return False
    return all(class_name(node) in _ROWS_AT_HAND for node in walk(plan) if not node.children().size())


def watermark_delay_ms(frame: DataFrame, name: str) -> int | None:
    """The delay of the watermark on a column, or None if it has none."""
    for output in items(analyzed(frame).output()):
        if output.name() == name and output.metadata().contains(WATERMARK_KEY):
            return int(output.metadata().getLong(WATERMARK_KEY))
    return None


def checked(where: str, build: Callable[[], T]) -> T:
    """Run something that Spark analyses; what Spark refuses becomes an error of ours, without Spark's traceback."""
    try:
        return build()
    except AnalysisException as refused:
        raise QueryError(where=where, found=first_line(refused), hint=advice(refused)) from None
    except (PySparkException, Py4JJavaError) as refused:
        raise QueryError(where=where, found=first_line(refused)) from None


def advice(refused: PySparkException) -> str:
    condition = refused.getCondition() or ""
    if condition.startswith("UNRESOLVED_COLUMN"):
        return "use a column that the stream has at this point; printSchema() shows them"
    return ""


def first_line(error: BaseException) -> str:
    text = str(getattr(error, "desc", None) or error).strip().split("\n")[0]
    return text.split(" SQLSTATE")[0]


def frame_of(session: SparkSession, plan: Any, analyzed: bool = False) -> DataFrame:
    """The DataFrame of a logical plan; one that is known to be analysed need not be looked through once more."""
    if analyzed:
        plan.setAnalyzed()
    jvm: Any = session._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


class Binding:
    """A place in a plan where a template stands: what takes its place must have the same columns.

    Expressions in the plan name the template's columns by their ids, so the actual columns are given those ids, and with them
    the template's metadata: an event time stays one.
    """

    def __init__(self, session: SparkSession, template: Any) -> None:
        jvm: Any = session._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        # Names of Java's are looked up by a round trip a dot; these are used for every batch.
        self._alias, self._project, self._to_seq = catalyst.expressions.Alias, catalyst.plans.logical.Project, jvm.PythonUtils.toSeq
        self._none = self._to_seq([])
        self._output = template.output()
        self._columns = [(c.name(), c.exprId(), jvm.scala.Some(c.metadata())) for c in items(self._output)]
        self._named: tuple[str, Any] = ("", None)
        self.ids = tuple(expr_id.id() for _, expr_id, _ in self._columns)

    def to(self, actual: Any) -> Any:
        """The actual plan under the template's ids."""
        match class_name(actual):
            # Nodes that may be told what their columns are called: every further node costs the planner time, batch after batch.
            case "MapInArrow":
                return actual.copy(actual.functionExpr(), self._output, actual.child(), actual.isBarrier(), actual.profile())
            case "LocalRelation":
                return actual.copy(self._output, actual.data(), actual.isStreaming(), actual.stream())
            case "Repartition":
                return actual.copy(actual.numPartitions(), actual.shuffle(), self.to(actual.child()))
        return self._project(self._names_of(actual.output()), actual)

    def _names_of(self, output: Any) -> Any:
        """The actual columns as the template's; mostly they are those of the batch before."""
        text = output.toString()
        if self._named[0] != text:
            named = [
                self._alias(now, name, expr_id, self._none, metadata, self._none)
                for (name, expr_id, metadata), now in zip(self._columns, items(output), strict=True)
            ]
            self._named = (text, self._to_seq(named))
        return self._named[1]


def substitute(session: SparkSession, plan: Any, actual: Sequence[tuple[DataFrame, DataFrame]]) -> Any:
    """The plan with templates inside it replaced by actual DataFrames of the same columns; pairs are given in the plan's order.

    Each template must be there exactly once. Where one batch DataFrame is used twice in a plan, Spark gives the columns of the second
    occurrence new ids; it would stay in, and its rows would be missing.
    """
    wanted = [analyzed(template) for template, _ in actual]
    bound = [Binding(session, node).to(analyzed(rows)) for node, (_, rows) in zip(wanted, actual, strict=True)]
    found = [0] * len(wanted)

    def replacement(node: Any) -> Any | None:
        equal = [at for at, each in enumerate(wanted) if node.equals(each)]
        if not equal:
            return None
        # Two templates may be equal: they then stand in the order of the pairs.
        at = next((at for at in equal if not found[at]), equal[-1])
        found[at] += 1
        return bound[at]

    replaced = rewrite(session, plan, replacement)
    require(found == [1] * len(wanted), f"every template is in its plan exactly once; they were found {found} times")
    return replaced


def nothing(session: SparkSession, schema: StructType) -> DataFrame:
    """No rows of these columns. Unlike a DataFrame of an empty list it has no partitions, and Spark leaves it out of unions."""
    jvm: Any = session._jvm
    java: Any = session._jsparkSession
    return DataFrame(java.createDataFrame(jvm.java.util.ArrayList(), java.parseDataType(schema.json())), session)
