"""Aggregate functions without a vector form: the state is Spark's own buffers, and Spark's own code fills, merges and finishes them.

    rows --Spark: update--> a buffer per row, or per key and map task --route--> kernel: lists of buffers per key
         --Spark: merge (see `operators.settled`)--> one buffer per key --> state, and --Spark: eval--> the user's result

The kernel never looks inside a buffer: to it, a buffer is an element of a list, and two partials merge by putting one list after the
other. That is all that windows, flushes, compaction and rescaling need. Spark merges the buffers of a list by an expression
(`spark.buffers`), which needs no shuffle, so that one shuffle remains all that a batch has.

A running aggregate has such a merge in every batch, between two Python tasks of one stage (`operators.settled`), and not in a job that
compacts lists now and then. So a key has one buffer in the state, however many batches it has been through. Nothing is added to what a
version is: the step's result depends only on the batch and on the version before, so retries, replays and rescaling need no case of their
own. And a state with longer lists is still exact, so that nothing depends on the step having run.

Windows have no such step: their state is parts that are combined when they are read, so a window keeps one buffer per key, pane and batch
that had rows for it, until it closes. Sessions and count windows keep a buffer per row, as they keep rows for other functions.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.pieces import Call, Piece
from headrace.compile.types import arrow_type, decode, encode, transport_type
from headrace.errors import UnsupportedError
from headrace.operators.more_partials import Lists


def buffered(call: Call) -> Piece:
    """The parts of a call whose state is Spark's own buffer."""
    buffer = call.function.buffer(call.context.session)
    if buffer is None:
        raise UnsupportedError(
            "Spark's streaming runs no aggregate function that is written in Python",
            where=call.where,
            found=call.function.sql_name,
            hint="use Spark's own functions, or groupBy(...).process(...)",
        )
    kind = buffer.kind
    kept, travels = T.ArrayType(kind), T.ArrayType(transport_type(kind))

    def listed(column: Column, present: Column) -> Column:
        return F.when(present, F.array(encode(column, kind))).otherwise(F.array()).cast(travels)

    def row(inputs: list[Column]) -> list[Column | None]:
        return [listed(buffer.of_row(inputs[0]), inputs[0].isNotNull())]

    def many(inputs: list[Column]) -> list[Column]:
        # Rows that a FILTER clause leaves out are null, and collect_list leaves them out.
        every = F.collect_list(inputs[0])
        return [listed(buffer.of_rows(every), F.size(every) > 0)]

    def of(column: Column) -> Column:
        return F.coalesce(decode(column, kept), F.array().cast(kept))

    def settle(column: Column) -> Column:
        return F.when(F.size(column) > 1, listed(buffer.merged(of(column)), F.lit(True))).otherwise(column)

    return Piece(
        Lists(arrow_type(transport_type(kind))),
        [call.kept(buffer.arguments())],
        row,
        many,
        None,
        finish=lambda p: buffer.result(of(p[0])),
        types=[travels],
        settle=lambda p: [settle(p[0])],
    )
