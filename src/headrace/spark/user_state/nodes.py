"""Users' stateful Python code in Spark's analysed plans: the node, the object that the user wrote, and what it was called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.core import broadcast
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headrace.errors import InvariantError
from headrace.spark.expressions import WATERMARK_KEY
from headrace.spark.gateway import class_name, items, unpickled
from headrace.spark.plans import Plan, analyzed, frame_of
from headrace.spark.types import from_json
from headrace.spark.user_state.front import Form

TRANSFORM = "TransformWithStateInPySpark"
GROUP_STATE = "FlatMapGroupsInPandasWithState"
EVENT_TIME = "UpdateEventTimeWatermarkColumn"
"""Spark's nodes for transformWithState (rows and pandas), for applyInPandasWithState, and for its argument ``eventTimeColumnName``."""
_FORMS = {"pandas": Form.PANDAS, "python_row": Form.ROWS}


@dataclass(frozen=True, eq=False)
class UserStateCall:
    """A call of ``transformWithState``, ``transformWithStateInPandas`` or ``applyInPandasWithState``, as Spark's plan has it."""

    form: Form
    code: Any
    """The user's processor or function, unpickled."""
    input: Plan
    """The plan of the rows that the code gets. Spark's own projection that repeats the keys is left out."""
    keys: tuple[str, ...]
    """The names of the grouping columns."""
    rows: T.StructType
    """The columns of the rows, with their metadata."""
    result: T.StructType
    """The columns that the code emits. An event time that the user named is marked."""
    event_time: str | None
    """The column that ``eventTimeColumnName`` named."""
    output_mode: str
    """``Append``, ``Update`` or ``Complete``."""
    time: str
    """Spark's name of the time mode or of the kind of timeout."""
    state: T.StructType | None
    """The state of a function with a group state."""
    initial: DataFrame | None
    """The initial state. Its first columns are those in ``initial_keys``, and then all of its own."""
    initial_keys: int = 0


def is_user_state(plan: Plan) -> bool:
    """True if the last step of a plan is a user's stateful Python code."""
    node = plan.node
    return class_name(node) in (TRANSFORM, GROUP_STATE) or (class_name(node) == EVENT_TIME and class_name(node.child()) == TRANSFORM)


def user_state_call(plan: Plan) -> UserStateCall:
    """The call that is the last step of a plan, see `is_user_state`."""
    node, event_time = plan.node, None
    if class_name(node) == EVENT_TIME:
        event_time, node = str(node.eventTime().name()), node.child()
    if class_name(node) == GROUP_STATE:
        return _group_state_call(plan.session, node)
    return _transform_call(plan.session, node, event_time)


def _transform_call(session: SparkSession, node: Any, event_time: str | None) -> UserStateCall:
    width = int(node.groupingAttributesLen())
    projected = node.child()
    below = projected.child() if class_name(projected) == "Project" else projected
    attributes = list(items(projected.output()))
    # The projection repeats the keys in front of all columns of the user's DataFrame.
    if len(attributes) - width != below.output().size():
        raise InvariantError("Spark's plan of transformWithState has another form than expected", found=str(projected.toString())[:500])
    rows = _schema(attributes[width:])
    kind = str(node.userFacingDataType().toString())
    # PySpark wraps the processor in an object of its own, whose method is the function.
    wrapper = _function(session, node.functionExpr()).__self__
    initial = frame_of(session, node.initialState()) if node.hasInitialState() else None
    return UserStateCall(
        form=_FORMS[kind],
        code=wrapper._stateful_processor,
        input=Plan(session, below),
        keys=tuple(str(each.name()) for each in attributes[:width]),
        rows=rows,
        result=with_event_time(_schema(list(items(node.outputAttrs()))), event_time, rows),
        event_time=event_time,
        output_mode=str(node.outputMode().toString()),
        time=str(wrapper._time_mode),
        state=None,
        initial=initial,
        initial_keys=int(node.initGroupingAttrsLen()) if initial is not None else 0,
    )


def _group_state_call(session: SparkSession, node: Any) -> UserStateCall:
    state = from_json(node.stateType().json())
    assert isinstance(state, T.StructType)
    return UserStateCall(
        form=Form.GROUP_STATE,
        code=_function(session, node.functionExpr()),
        input=Plan(session, node.child()),
        keys=tuple(str(each.name()) for each in items(node.groupingAttributes())),
        rows=_schema(list(items(node.child().output()))),
        result=_schema(list(items(node.outputAttrs()))),
        event_time=None,
        output_mode=str(node.outputMode().toString()),
        time=str(node.timeout().toString()),
        state=state,
        initial=None,
    )


def _schema(attributes: list[Any]) -> T.StructType:
    fields = []
    for each in attributes:
        metadata = {WATERMARK_KEY: int(each.metadata().getLong(WATERMARK_KEY))} if each.metadata().contains(WATERMARK_KEY) else {}
        fields.append(T.StructField(str(each.name()), from_json(each.dataType().json()), True, metadata))
    return T.StructType(fields)


def with_event_time(result: T.StructType, event_time: str | None, rows: T.StructType) -> T.StructType:
    """The columns of results with the event time marked that the user named, if any. It has the delay of the input's event time."""
    delays = [f.metadata[WATERMARK_KEY] for f in rows.fields if WATERMARK_KEY in f.metadata]
    if event_time is None or not delays:
        return result
    mark = {WATERMARK_KEY: delays[0]}
    return T.StructType([T.StructField(f.name, f.dataType, True, mark if f.name == event_time else {}) for f in result.fields])


def _function(session: SparkSession, udf: Any) -> Any:
    """The user's function in a ``PythonUDF``."""
    function = udf.func()
    _register_broadcasts(session, function.broadcastVars())
    found = unpickled(session, function)
    if isinstance(found, broadcast.Broadcast):
        # PySpark sends large functions as broadcasts.
        _register_broadcasts(session, function.broadcastVars())
        found = CloudPickleSerializer().loads(found.value)
    return found[0]


def _register_broadcasts(session: SparkSession, variables: Any) -> None:
    """Make broadcast variables known to PySpark in the driver, where unpickling looks for them."""
    for at in range(variables.size()):
        java = variables.get(at)
        if java.id() not in broadcast._broadcastRegistry:
            one: Any = broadcast.Broadcast(path=java.value().path())
            one._jbroadcast, one._sc, one._python_broadcast = java, session.sparkContext, java.value()
            one._pickle_registry = session.sparkContext._pickled_broadcast_vars
            broadcast._broadcastRegistry[java.id()] = one


def call_of(frame: DataFrame) -> UserStateCall:
    """The call that a DataFrame ends with."""
    return user_state_call(Plan(frame.sparkSession, analyzed(frame)))
