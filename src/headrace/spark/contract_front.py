"""The part of the contract with Spark that the front end needs: what analysed plans consist of, and Spark's own checks of streams."""

from __future__ import annotations

from collections.abc import Mapping

MEMBERS: Mapping[str, Mapping[str, str]] = {
    "org.apache.spark.sql.catalyst.analysis": {
        "UnsupportedOperationChecker": "checkForStreaming/2",
        "StreamingJoinHelper": "getStateValueWatermark/4",
    },
    "org.apache.spark.sql.catalyst.plans": {"QueryPlan": "outputSet"},
    "org.apache.spark.sql.catalyst.plans.logical": {
        "Join": "joinType condition left right",
        "Deduplicate": "keys child",
        "DeduplicateWithinWatermark": "keys child",
        "Expand": "projections output child",
        "CollectMetrics": "name metrics child",
        "GlobalLimit": "limitExpr child",
        "Sort": "global",
        "Window": "windowExpressions partitionSpec orderSpec child",
    },
    "org.apache.spark.sql.catalyst.expressions.aggregate": {
        "AggregateExpression": "aggregateFunction mode isDistinct filter resultId copy/5",
    },
    "org.apache.spark.sql.catalyst.expressions": {
        "And": "new/2 left right",
        "EqualTo": "left right",
        "EqualNullSafe": "left right",
        "Coalesce": "new/1",
        "IsNull": "new/1",
        "Literal": "default/1",
        "Alias": "new/6 toAttribute",
        "NamedExpression$": "newExprId",
        "PreciseTimestampConversion": "toType child",
        "TimestampAddInterval": "right timeZoneId",
        "WindowExpression": "windowFunction",
        "SortOrder": "new/4 child direction nullOrdering",
        "SortDirection": "defaultNullOrdering",
    },
    "org.apache.spark.sql.catalyst.trees": {"TreeNodeTag": "new/1", "TreeNode": "setTagValue/2 getTagValue/1"},
    "org.apache.spark.sql.catalyst.rules": {"RuleExecutor": "execute/1"},
    "org.apache.spark.sql.errors": {
        "QueryCompilationErrors": (
            "queryNameNotSpecifiedForMemorySinkError dataSourceOutputModeUnsupportedError/2 checkpointLocationNotSpecifiedError"
        ),
    },
    "org.apache.spark.sql.streaming": {"OutputMode": "Append Update Complete"},
}
"""Members that all supported versions have, as in ``contract.MEMBERS``."""
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
NAMES = (
    *(f"{_LOGICAL}.{name}" for name in ("Union", "MapInPandas", "WithCTE")),
    *(f"{_EXPRESSIONS}.{name}" for name in ("Explode", "PosExplode", "Inline")),
    *(f"{_EXPRESSIONS}.{name}" for name in ("CreateNamedStruct", "KnownNullable", "IsNotNull", "ScalarSubquery", "Exists", "ListQuery")),
    f"{_EXPRESSIONS}.LateralSubquery",
    *(f"{_EXPRESSIONS}.{name}" for name in ("RowNumber", "Rank", "DenseRank", "Ascending$", "Descending$", "NullsFirst$")),
)
"""Classes that are recognised by name."""
PYTHON: Mapping[str, str] = {
    "pyspark.sql.classic.dataframe": "DataFrame.writeStream",
    "pyspark.sql.streaming.readwriter": "DataStreamWriter.start DataStreamWriter.toTable DataStreamWriter.foreachBatch",
}
"""Names of PySpark's modules."""
