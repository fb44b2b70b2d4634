"""Users' stateful code from Spark's plans in the graph: read the call, learn the state variables, build the node."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from headrace.errors import QueryError
from headrace.graph.nodes import Rows, UserStateNode
from headrace.spark.gateway import checked
from headrace.spark.plans import Plan, plan_of
from headrace.spark.user_state.declared import declared_by
from headrace.spark.user_state.front import Form
from headrace.spark.user_state.nodes import UserStateCall, is_user_state, user_state_call

__all__ = ["input_of", "is_user_state", "node_of", "spark_call"]


def input_of(plan: Plan) -> Plan:
    """The plan of the rows that the user's code gets. ``is_user_state(plan)`` must be true."""
    return user_state_call(plan).input


def node_of(plan: Plan, child: Rows, where: str) -> UserStateNode:
    """The node of a plan for which ``is_user_state`` is true. ``child`` are the rows of ``input_of(plan)``."""
    call = user_state_call(plan)
    _check(call, child, where)
    declared = () if call.form is Form.GROUP_STATE else declared_by(call.code, call.time, where)
    return UserStateNode(child, call, declared, where)


def spark_call(rows: Rows, build: Callable[[DataFrame], DataFrame], where: str) -> UserStateNode:
    """The node of a call of PySpark's method on the rows' DataFrame. PySpark checks the arguments."""
    try:
        frame = checked(where, lambda: build(rows.frame))
    except AssertionError as refused:
        raise QueryError(str(refused) or "PySpark does not accept these arguments", where=where) from None
    return node_of(plan_of(frame), rows, where)


def _check(call: UserStateCall, child: Rows, where: str) -> None:
    names = [f.name for f in call.rows.fields]
    if names != child.columns:
        raise QueryError(where=where, wanted=f"rows with the columns {', '.join(names)}", found=", ".join(child.columns))
    if call.initial is not None and call.initial.isStreaming:
        raise QueryError(where=f"{where}, initialState", wanted="groups of a batch DataFrame", found="a streaming DataFrame")
    if call.form is Form.GROUP_STATE and call.time == "EventTimeTimeout" and not any(f.metadata for f in call.rows.fields):
        raise QueryError(where=where, wanted="a stream with an event time", found="none", hint="call withWatermark on the stream first")
