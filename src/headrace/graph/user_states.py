"""Users' stateful code from Spark's plans in the graph: read the call, learn the state variables, build the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame

from headrace.errors import QueryError
from headrace.graph.nodes import Rows, UserStateNode
from headrace.spark.gateway import checked
from headrace.spark.plans import Plan, plan_of
from headrace.spark.user_state.declared import declared_by
from headrace.spark.user_state.front import Form
from headrace.spark.user_state.nodes import UserStateCall, is_user_state, user_state_call, with_event_time

__all__ = ["input_of", "is_user_state", "node_of", "spark_call"]


def input_of(plan: Plan) -> Plan:
    """The plan of the rows that the user's code gets. ``is_user_state(plan)`` must be true."""
    return user_state_call(plan).input


def node_of(plan: Plan, child: Rows, where: str) -> UserStateNode:
    """The node of a plan for which ``is_user_state`` is true. ``child`` are the rows of ``input_of(plan)``."""
    return _node(user_state_call(plan), child, where)


def spark_call(rows: Rows, build: Callable[[DataFrame], DataFrame], event_time: str, where: str) -> UserStateNode:
    """The node of a call of PySpark's method on the rows' DataFrame. PySpark checks the arguments.

    ``event_time`` is the column that is to be the event time of the results, or empty. Spark would look for the watermark in the plan, and
    rows of another operator have none there.
    """
    try:
        frame = checked(where, lambda: build(rows.frame))
    except AssertionError as refused:
        raise QueryError(str(refused) or "PySpark does not accept these arguments", where=where) from None
    call = user_state_call(plan_of(frame))
    if event_time:
        known = ", ".join(call.result.names)
        if event_time not in call.result.names:
            raise QueryError(where=f"{where}, eventTimeColumnName", wanted=f"a column of the results: {known}", found=repr(event_time))
        if not any(f.metadata for f in call.rows.fields):
            raise QueryError(where=f"{where}, eventTimeColumnName", wanted="a stream with a watermark", found="one without")
        call = replace(call, event_time=event_time, result=with_event_time(call.result, event_time, call.rows))
    return _node(call, rows, where)


def _node(call: UserStateCall, child: Rows, where: str) -> UserStateNode:
    _check(call, child, where)
    declared = () if call.form is Form.GROUP_STATE else declared_by(call.code, call.time, where)
    return UserStateNode(child, call, declared, where)


def _check(call: UserStateCall, child: Rows, where: str) -> None:
    names = [f.name for f in call.rows.fields]
    if names != child.columns:
        raise QueryError(where=where, wanted=f"rows with the columns {', '.join(names)}", found=", ".join(child.columns))
    if call.form is Form.GROUP_STATE and not set(call.keys) <= set(names):
        raise QueryError(
            "Spark fails on this query too, when it runs",
            where=where,
            wanted="applyInPandasWithState of groups by columns",
            found="a field of a struct in groupBy",
            hint="make the field a column first: withColumn('city', F.col('place.city'))",
        )
    if call.initial is not None and call.initial.isStreaming:
        raise QueryError(where=f"{where}, initialState", wanted="groups of a batch DataFrame", found="a streaming DataFrame")
    if call.form is Form.GROUP_STATE and call.time == "EventTimeTimeout" and not any(f.metadata for f in call.rows.fields):
        raise QueryError(where=where, wanted="a stream with an event time", found="none", hint="call withWatermark on the stream first")
