"""Carrying over the state of users' code: variables, timers and timeouts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.migration.registry import Carried, carries, check_same_types, fields_of, key_column
from headrace.compile.plan import StatefulPlan
from headrace.compile.types import encode, normalize
from headrace.graph.nodes import UserStateNode
from headrace.operators.lifetime import WRITTEN
from headrace.operators.user_state.kernel import UserState
from headrace.operators.user_state.shape import EXISTS, GROUP_STATE, TIMEOUT, TimeMode, store_name
from headrace.operators.user_state.timers import MS
from headrace.spark.spark_state import SparkState
from headrace.spark.user_state.declared import Declared
from headrace.state.layout import SUB

_NAMES = (
    "applyInPandasWithState",
    "flatMapGroupsWithState",
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
)
_GROUP = "groupState"
_TIMEOUT = "timeoutTimestamp"
_EXPIRES = "ttlExpirationMs"


@carries(UserStateNode, *_NAMES)
def carry_user_state(node: UserStateNode, plan: StatefulPlan, state: SparkState) -> Carried:
    """A store for each variable, and one for the timers. The initial state has been taken in by Spark."""
    assert isinstance(plan.operator, UserState)
    shape = plan.operator.shape
    if node.call.state is not None:
        return {GROUP_STATE: _group_state(node, node.call.state, plan, state)}
    found = {store_name(each.name): _variable(node, each, plan, state) for each in node.declared}
    if shape.time is not TimeMode.NONE:
        rows = state.rows(readRegisteredTimers="true")
        at = (F.col("expiration_timestamp_ms") * MS).cast("long").alias(SUB)
        found[shape.timers] = rows.select(*_keys(node, rows, state), at).select(plan.input.hashed, "*")
    return found


def _keys(node: UserStateNode, rows: DataFrame, state: SparkState) -> list[Column]:
    kinds: dict[str, T.DataType] = {f.name: f.dataType for f in node.source.schema.fields}
    wanted = [(name, kinds[name]) for name in node.call.keys]
    fields = fields_of(rows, "key")
    check_same_types(state.where, fields, wanted)
    return [key_column(f, kind).alias(f"k{at}") for at, (f, (_, kind)) in enumerate(zip(fields, wanted, strict=True))]


def _group_state(node: UserStateNode, kind: T.StructType, plan: StatefulPlan, state: SparkState) -> DataFrame:
    """A state and its timeout. A key that has a timeout alone has no state."""
    rows = state.rows()
    value = F.col("value")
    theirs = {f.name: f for f in fields_of(rows, "value")}
    held = value.getField(_GROUP)
    check_same_types(state.where, [theirs[_GROUP]], [(_GROUP, kind)])
    values = _values(held, kind)
    timeout = value.getField(_TIMEOUT) if _TIMEOUT in theirs else F.lit(None)
    more = [held.isNotNull().alias(EXISTS), F.when(timeout >= 0, timeout).cast("long").alias(TIMEOUT)]
    return rows.select(*_keys(node, rows, state), *values, *more).select(plan.input.hashed, "*")


def _variable(node: UserStateNode, variable: Declared, plan: StatefulPlan, state: SparkState) -> DataFrame:
    """The rows of a state variable."""
    rows = state.rows(stateVarName=variable.name, flattenCollectionTypes=str(variable.kind == "map").lower())
    where = f"{state.where}, state {variable.name!r}"
    keys = _keys(node, rows, state)
    more: list[Column] = []
    if variable.kind == "list":
        rows = rows.select("key", F.posexplode("list_value").alias("position", "value"))
        more = [F.col("position").cast("long").alias(SUB)]
    elif variable.kind == "map":
        assert variable.keys is not None
        check_same_types(where, fields_of(rows, "user_map_key"), [(f.name, f.dataType) for f in variable.keys.fields])
        theirs = fields_of(rows, "user_map_key")
        mapped = [F.col("user_map_key").getField(f.name).cast(own.dataType) for f, own in zip(theirs, variable.keys.fields, strict=True)]
        more = [
            encode(normalize(column, own.dataType), own.dataType).alias(f"m{at}")
            for at, (column, own) in enumerate(zip(mapped, variable.keys.fields, strict=True))
        ]
        rows = rows.withColumnRenamed("user_map_value", "value")
    written: list[Column] = []
    held, kind = F.col("value"), rows.schema["value"].dataType
    if variable.ttl_ms is not None:
        written = [((held.getField(_EXPIRES) - variable.ttl_ms) * 1000).cast("long").alias(WRITTEN)]
        assert isinstance(kind, T.StructType)
        held, kind = held.getField("value"), kind["value"].dataType
    assert isinstance(kind, T.StructType)
    check_same_types(where, kind.fields, [(f.name, f.dataType) for f in variable.values.fields])
    return rows.select(*keys, *more, *_values(held, variable.values), *written).select(plan.input.hashed, "*")


def _values(held: Column, kind: T.StructType) -> list[Column]:
    whole = held.cast(kind)
    return [encode(whole.getField(f.name), f.dataType).alias(f"p{at}") for at, f in enumerate(kind.fields)]
