"""Numbers inside a plan that the driver sets before each batch.

Spark plans a batch of a streaming query from one plan that was analysed when the query started, and has planned it by the time it calls
``foreachBatch``. A dial is an array with one element among the literals of that plan. Tasks get a copy of the plan when their job is
submitted. So a value that is set before holds for all jobs of the batch, also inside the scan of its source, and nothing is planned or
compiled anew. Spark's optimiser does not replace the dial by its value, because the position in the array depends on the row.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.spark.expressions import column
from headrace.spark.gateway import class_name, jvm_of
from headrace.spark.plans import optimized_stream
from headrace.spark.trees import expressions_with


class Dial:
    """A number of one of Spark's types, ``int`` or ``double``, or null."""

    def __init__(self, session: SparkSession, kind: str, value: float | None) -> None:
        jvm = jvm_of(session)
        values = jvm.java.util.ArrayList()
        values.add(value)
        self._array = jvm.org.apache.spark.sql.catalyst.util.GenericArrayData(values)
        array_type = jvm.org.apache.spark.sql.types.DataType.fromDDL(f"array<{kind}>")
        self._literal = column(session, jvm.org.apache.spark.sql.catalyst.expressions.Literal(self._array, array_type))

    def set(self, value: float | None) -> None:
        """Let the number have this value in all jobs that are submitted from now on. Meanwhile no job that uses it may run."""
        self._array.update(0, value)

    def beside(self, whole: Column) -> Column:
        """The number as a column. ``whole`` is any column of whole numbers that are not constant."""
        return F.get(self._literal, F.pmod(whole, F.lit(1)).cast("int"))

    def is_in(self, frame: DataFrame) -> bool:
        """True if it is still in the plan after optimisation. Beside a constant it is not, and its value has been taken for good."""
        session = frame.sparkSession
        same = jvm_of(session).java.lang.System.identityHashCode
        wanted = same(self._array)
        constants = (each for each in expressions_with(session, optimized_stream(frame), "LITERAL") if class_name(each) == "Literal")
        return any(same(each.value()) == wanted for each in constants if class_name(each.dataType()) == "ArrayType")
