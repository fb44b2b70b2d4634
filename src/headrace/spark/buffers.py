"""Spark's aggregation buffers as values of columns, with Spark's own code to fill, merge and finish them.

Spark runs an aggregate function in steps: it makes a buffer, updates it by rows, merges buffers, and computes the result. Only Spark's
aggregation operators call these steps. Here they become ordinary expressions over columns, so that they can run anywhere in a plan, also
between two Python functions in one stage, and need no shuffle and no grouping of their own:

    ArrayAggregate(buffers, new buffer, (buffer, next) -> merge(buffer, next), buffer -> result)

The lambdas call the function that Spark's analysis has made, bound to a struct of its arguments. How depends on its kind:

| kind | buffer in a column | steps |
| --- | --- | --- |
| declarative (``corr``) | struct of the buffer's fields | Spark's own expressions for each step, over the fields |
| typed (``percentile_approx``) | bytes, as the function serialises it | ``Invoke`` of its methods, on the buffer as an object |
| imperative (``bitmap_construct_agg``) | struct of the buffer's fields | ``Invoke`` of its methods, on a mutable row |

Each task has its own copy of the lambdas, so the mutable buffers inside are never shared. Spark can generate code for a fold, but not for
methods that return nothing. So each fold is inside a ``ZipWith`` over a single element, for which Spark never generates code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StructField, StructType

from headrace.spark import trees
from headrace.spark.expressions import column, data_type, expression_maker
from headrace.spark.gateway import class_name, class_named, items, java_session, jvm_of, seq, singleton

_PACKAGE = "org.apache.spark.sql.catalyst.expressions.aggregate"
_DECLARATIVE, _TYPED, _IMPERATIVE = (f"{_PACKAGE}.{name}Aggregate" for name in ("Declarative", "TypedImperative", "Imperative"))
REPLACEABLE = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"
MEMBERS = {
    _PACKAGE: {
        "AggregateFunction": "aggBufferAttributes inputAggBufferAttributes",
        "DeclarativeAggregate": "initialValues updateExpressions mergeExpressions evaluateExpression",
        "ImperativeAggregate": "initialize/1 update/2 merge/2 withNewMutableAggBufferOffset/1 withNewInputAggBufferOffset/1",
        "TypedImperativeAggregate": "createAggregationBuffer update/2 merge/2 eval/1 serialize/1 deserialize/1",
    },
    "org.apache.spark.sql.catalyst": {"InternalRow": "copy"},
    "org.apache.spark.sql.catalyst.expressions": {
        "ArrayAggregate": "new/4",
        "ZipWith": "new/3",
        "BoundReference": "new/3",
        "Coalesce": "new/1",
        "CreateNamedStruct": "new/1",
        "GenericInternalRow": "new/1",
        "GetStructField": "new/3",
        "LambdaFunction": "new/3",
        "Literal$": "apply/1 fromObject/2",
        "NamedExpression$": "newExprId",
        "NamedLambdaVariable": "new/5",
        "RuntimeReplaceable": "replacement",
        "SortOrder": "child",
    },
    "org.apache.spark.sql.catalyst.expressions.objects": {"Invoke": "new/8"},
    "org.apache.spark.sql.types": {"ObjectType": "new/1", "ArrayType": "new/2"},
}
"""What this module relies on in Spark, as in ``contract.MEMBERS``."""


_INTEGER = IntegerType()


class SparkBuffer(ABC):
    """The buffer of one aggregate call. Arguments are given as the struct that ``arguments`` makes."""

    kind: DataType
    """Spark's type of the buffer in a column."""

    def __init__(self, session: SparkSession, function: Any) -> None:
        self._session, self._function = session, function
        self._jvm = jvm_of(session)
        self._catalyst = self._jvm.org.apache.spark.sql.catalyst.expressions
        self._orders = list(items(function.children()))
        # An order, as in listagg, is not a value. What it orders by is.
        self._children = [each.child() if class_name(each) == "SortOrder" else each for each in self._orders]
        self._to_expression = expression_maker(session)

    def arguments(self) -> Column:
        """The function's arguments as a struct: the columns of the stream that it reads."""
        named = [column(self._session, child).alias(f"a{at}") for at, child in enumerate(self._children)]
        return F.struct(*named) if named else F.struct(F.lit(0).alias("none"))

    def of_row(self, arguments: Column) -> Column:
        """The buffer of a single row."""
        # A fold over one row: interpreted like all others, so that there is one way only.
        return self.of_rows(F.array(arguments))

    def of_rows(self, arguments: Column) -> Column:
        """The buffer of many rows, from an array of their arguments."""
        return self._fold(arguments, self._argument_type(), self._updated, self._stored)

    def merged(self, buffers: Column) -> Column:
        """One buffer, from an array of buffers."""
        return self._fold(buffers, self._java_type(self.kind), self._merge, self._stored)

    def result(self, buffers: Column) -> Column:
        """The function's result, from an array of buffers. That of an empty array is the result of no rows."""
        return self._fold(buffers, self._java_type(self.kind), self._merge, self._finished)

    @abstractmethod
    def _new(self) -> Any:
        """A buffer of no rows, as it is inside a fold."""

    @abstractmethod
    def _updated(self, buffer: Any, arguments: Any) -> Any: ...

    @abstractmethod
    def _merge(self, buffer: Any, stored: Any) -> Any: ...

    @abstractmethod
    def _stored(self, buffer: Any) -> Any:
        """From inside a fold to a column."""

    @abstractmethod
    def _finished(self, buffer: Any) -> Any: ...

    def _fold(self, array: Column, element: Any, step: Callable[[Any, Any], Any], end: Callable[[Any], Any]) -> Column:
        whole = self._variable("a", self._jvm.org.apache.spark.sql.types.ArrayType(element, True))
        unused = self._variable("i", self._java_type(_INTEGER))
        folded = self._lambda(self._aggregated(whole, element, step, end, self._new()), [whole, unused])
        only, once = (self._to_expression(F.array(each)) for each in (array, F.lit(0)))
        return column(self._session, self._catalyst.ZipWith(only, once, folded)).getItem(0)

    def _aggregated(self, array: Any, element: Any, step: Callable[[Any, Any], Any], end: Callable[[Any], Any], start: Any) -> Any:
        held = self._held(start)
        buffer, each, done = (self._variable(name, kind) for name, kind in (("b", held), ("x", element), ("d", held)))
        merge, finish = self._lambda(step(buffer, each), [buffer, each]), self._lambda(end(done), [done])
        return self._catalyst.ArrayAggregate(array, start, merge, finish)

    def _held(self, start: Any) -> Any:
        """The type of a buffer inside a fold that begins with ``start``."""
        return start.dataType()

    def _variable(self, name: str, kind: Any) -> Any:
        number = singleton(self._catalyst, "NamedExpression").newExprId()
        return self._catalyst.NamedLambdaVariable(name, kind, True, number, self._jvm.java.util.concurrent.atomic.AtomicReference())

    def _lambda(self, body: Any, variables: list[Any]) -> Any:
        return self._catalyst.LambdaFunction(body, seq(self._session, variables), False)

    def _bound(self, reference: Callable[[int, Any], Any]) -> Any:
        """The function over references to the struct of its arguments. Constants stay: Spark evaluates some of them beforehand."""
        found = []
        for at, (child, value) in enumerate(zip(self._orders, self._children, strict=True)):
            new = value if value.foldable() else reference(at, value)
            rest = list(items(child.children()))[1:]
            found.append(child.withNewChildren(seq(self._session, [new, *rest])) if class_name(child) == "SortOrder" else new)
        return self._function.withNewChildren(seq(self._session, found))

    def _java_type(self, kind: DataType) -> Any:
        return java_session(self._session).parseDataType(kind.json())

    def _argument_type(self) -> Any:
        fields = [StructField(f"a{at}", data_type(child)) for at, child in enumerate(self._children)]
        return self._java_type(StructType(fields or [StructField("none", _INTEGER)]))

    def _field(self, struct: Any, at: int) -> Any:
        return self._catalyst.GetStructField(struct, at, self._jvm.scala.Option.empty())

    def _struct(self, names: list[str], values: list[Any]) -> Any:
        literal = singleton(self._catalyst, "Literal")
        return self._catalyst.CreateNamedStruct(
            seq(self._session, [each for name, value in zip(names, values, strict=True) for each in (literal.apply(name), value)])
        )


class _Declarative(SparkBuffer):
    """The steps are expressions that Spark gives; only their attributes are replaced, by fields of structs."""

    def __init__(self, session: SparkSession, function: Any) -> None:
        super().__init__(session, function)
        self._mine = list(items(function.aggBufferAttributes()))
        self._theirs = [each.exprId().id() for each in items(function.inputAggBufferAttributes())]
        self._names = [f"f{at}" for at in range(len(self._mine))]
        self._ids = [each.exprId().id() for each in self._mine]
        self.kind = StructType([StructField(name, data_type(each)) for name, each in zip(self._names, self._mine, strict=True)])

    def _new(self) -> Any:
        return self._struct(self._names, list(items(self._function.initialValues())))

    def _held(self, start: Any) -> Any:
        # The first values may be constants that are never null. Later ones may be, and Spark must not optimise that away.
        return self._java_type(self.kind)

    def _updated(self, buffer: Any, arguments: Any) -> Any:
        function = self._bound(lambda at, _: self._field(arguments, at))
        return self._with_fields(function.updateExpressions(), function, buffer, None)

    def _merge(self, buffer: Any, stored: Any) -> Any:
        return self._with_fields(self._function.mergeExpressions(), self._function, buffer, stored)

    def _stored(self, buffer: Any) -> Any:
        return buffer

    def _finished(self, buffer: Any) -> Any:
        return trees.rewrite(self._session, self._function.evaluateExpression(), self._replacement(self._function, buffer, None))

    def _with_fields(self, expressions: Any, function: Any, buffer: Any, stored: Any) -> Any:
        change = self._replacement(function, buffer, stored)
        return self._struct(self._names, [trees.rewrite(self._session, each, change) for each in items(expressions)])

    def _replacement(self, function: Any, buffer: Any, stored: Any) -> Callable[[Any], Any | None]:
        # A copy of the function may have buffer attributes with ids of its own.
        mine = [each.exprId().id() for each in items(function.aggBufferAttributes())]
        theirs = [each.exprId().id() for each in items(function.inputAggBufferAttributes())]
        places = {each: (buffer, at) for at, each in enumerate(mine)}
        places |= {each: (stored, at) for at, each in enumerate(theirs)} if stored is not None else {}

        def replacement(expression: Any) -> Any | None:
            if class_name(expression) != "AttributeReference":
                return None
            place = places.get(expression.exprId().id())
            return None if place is None else self._field(*place)

        return replacement


class _Called(SparkBuffer):
    """The steps are methods of the function, which is bound to the struct of its arguments."""

    owner: str
    """The class that declares the methods."""

    def __init__(self, session: SparkSession, function: Any) -> None:
        super().__init__(session, function)
        types = self._jvm.org.apache.spark.sql.types
        self._object = types.ObjectType(class_named(session, "java.lang.Object"))
        self._row = types.ObjectType(class_named(session, "org.apache.spark.sql.catalyst.InternalRow"))
        reference = self._catalyst.BoundReference
        bound = self._bound(lambda at, child: reference(at, child.dataType(), True))
        bound = bound.withNewMutableAggBufferOffset(0).withNewInputAggBufferOffset(0)
        self._target = singleton(self._catalyst, "Literal").fromObject(bound, types.ObjectType(class_named(session, self.owner)))

    def _call(self, name: str, kind: Any, arguments: list[Any], target: Any | None = None) -> Any:
        # The types of the arguments decide between methods of one name.
        where, given = target or self._target, seq(self._session, arguments)
        declared = seq(self._session, [each.dataType() for each in arguments])
        return self._catalyst.objects.Invoke(where, name, kind, given, declared, False, True, True)


class _Typed(_Called):
    """The buffer is an object of the function's own class; in a column it is what the function serialises."""

    owner = _TYPED
    kind = BinaryType()

    def _new(self) -> Any:
        return self._call("createAggregationBuffer", self._object, [])

    def _updated(self, buffer: Any, arguments: Any) -> Any:
        return self._call("update", self._object, [buffer, arguments])

    def _merge(self, buffer: Any, stored: Any) -> Any:
        other = self._call("deserialize", self._object, [stored])
        return self._call("merge", self._object, [buffer, other])

    def _stored(self, buffer: Any) -> Any:
        return self._call("serialize", self._java_type(self.kind), [buffer])

    def _finished(self, buffer: Any) -> Any:
        return self._call("eval", self._function.dataType(), [buffer])


class _Imperative(_Called):
    """The buffer is a mutable row. Its methods return nothing, so each call is followed by the row itself."""

    owner = _IMPERATIVE

    def __init__(self, session: SparkSession, function: Any) -> None:
        super().__init__(session, function)
        fields = [data_type(each) for each in items(function.aggBufferAttributes())]
        self.kind = StructType([StructField(f"f{at}", kind) for at, kind in enumerate(fields)])
        self._width = len(fields)

    def _new(self) -> Any:
        literal = singleton(self._catalyst, "Literal")
        empty = literal.fromObject(self._catalyst.GenericInternalRow(self._width), self._row)
        copy = self._call("copy", self._row, [], target=empty)
        once, integer = F.array(F.lit(0)), self._java_type(_INTEGER)
        begun = lambda row, _: self._then(self._call("initialize", self._row, [row]), row)  # noqa: E731
        return self._aggregated(self._to_expression(once), integer, begun, lambda row: row, copy)

    def _updated(self, buffer: Any, arguments: Any) -> Any:
        return self._then(self._call("update", self._row, [buffer, arguments]), buffer)

    def _merge(self, buffer: Any, stored: Any) -> Any:
        return self._then(self._call("merge", self._row, [buffer, stored]), buffer)

    def _stored(self, buffer: Any) -> Any:
        return self._call("copy", self._java_type(self.kind), [], target=buffer)

    def _finished(self, buffer: Any) -> Any:
        return self._call("eval", self._function.dataType(), [buffer])

    def _then(self, call: Any, buffer: Any) -> Any:
        """The buffer, after a call that changes it and returns null."""
        return self._catalyst.Coalesce(seq(self._session, [call, buffer]))


def buffer_of(session: SparkSession, function: Any) -> SparkBuffer | None:
    """The buffer of an aggregate function of Spark's analysed plan. None if Spark cannot run it in steps, such as a Python function."""
    for kind, made in ((_DECLARATIVE, _Declarative), (_TYPED, _Typed), (_IMPERATIVE, _Imperative)):
        if is_a(session, function, kind):
            return made(session, function)
    return None


def is_a(session: SparkSession, node: Any, name: str) -> bool:
    """True if a JVM object is of a class, or has a trait, of this full name."""
    return bool(class_named(session, name).isInstance(node))


def array_of(buffer: SparkBuffer) -> DataType:
    """Spark's type of an array of buffers."""
    return ArrayType(buffer.kind)
