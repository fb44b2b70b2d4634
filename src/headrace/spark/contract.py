"""What Headrace relies on in Spark beyond its public API, as a list that is checked against the Spark that runs.

Spark may rename or change any of it in a new version. Some changes would go unnoticed and make results wrong: a plan node of another name
is no longer recognised. So the list is checked once per JVM, by ``hr.session`` or the first stream, and whatever is missing is an error.

All supported versions must have what is in ``MEMBERS``, ``NAMES``, ``PYTHON``, and in ``MEMBERS`` of other modules. ``MEMBERS_OF`` and
``PYTHON_OF`` have what differs, by version; ``versions.Dialect`` says how it is called.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from pyspark.sql import SparkSession

from headrace.errors import SessionError
from headrace.spark import aggregation, buffers, contract_front, expression_tree, streaming_writes
from headrace.spark.daemons import MASTER, WORKER
from headrace.spark.event_times import INNER_PLANS
from headrace.spark.gateway import connection, java_session, jvm_of
from headrace.spark.sinks import FILE_FORMATS, FILE_STATUS
from headrace.spark.streaming import FILE_MANAGER, STOP_TEXT, takes_for_stop
from headrace.spark.user_state import relied_on
from headrace.spark.versions import REQUIREMENT, check_same_version

_log = logging.getLogger(__name__)

Members = Mapping[str, Mapping[str, str]]
"""By package and class: methods that the class declares, with their number of parameters if they have any; ``new`` is a constructor."""

MEMBERS: Members = {
    "org.apache.spark": {
        "SparkContext": "makeRDD/2 isStopped statusStore statusTracker taskScheduler schedulerBackend getExecutorIds "
        "ui requestTotalExecutors/3 killExecutors/1 killAndReplaceExecutor/1 getExecutorThreadDump/1",
        "SparkStatusTracker": "getJobIdsForTag/1 getJobInfo/1 getStageInfo/1",
        "SparkJobInfo": "stageIds", "SparkStageInfo": "stageId currentAttemptId",
    },
    "org.apache.spark.scheduler": {
        "TaskSchedulerImpl": "runningTasksByExecutors isExecutorDecommissioned/1",
        "ExecutorDecommissionInfo": "new/2", "ExecutorProcessLost": "new/3",
    },
    "org.apache.spark.scheduler.cluster": {"CoarseGrainedSchedulerBackend": "decommissionExecutor/4 removeExecutor/2"},
    "org.apache.spark.api.python": {"PythonUtils": "toSeq/1 toScalaMap/1", "PythonFunction": "command"},
    "org.apache.spark.rdd": {"RDD": "id unpersist/1"},
    "org.apache.spark.status": {"AppStatusStore": "store executorList/1 taskList/3 lastStageAttempt/1"},
    "org.apache.spark.status.api.v1": {
        "ExecutorSummary": "id hostPort totalCores", "TaskData": "status executorId launchTime", "StageData": "status executorRunTime",
    },
    "org.apache.spark.unsafe.types": {"UTF8String": "fromString/1 getBytes", "CalendarInterval": "new/3"},
    "org.apache.spark.sql": {"Column": "new/1 node", "Dataset": "createOrReplaceTempView/1", "RowFactory": "create/1"},
    "org.apache.spark.sql.classic": {
        "SparkSession": "createDataFrame/2 parseDataType/1 sessionState",
        "Dataset": "new/2 ofRows/2 queryExecution collect",
        "ExpressionUtils": "column/1 expression/1",
    },
    "org.apache.spark.sql.internal": {
        "SessionState": "conf sqlParser catalog newHadoopConf dataSourceManager optimizer",
        "UnresolvedFunction": "functionName arguments",
        "Alias": "name child", "Literal": "value",
    },
    "org.apache.spark.sql.types": {
        "DataType": "fromDDL/1 json catalogString",
        "StructType": "fieldNames",
        "Metadata": "empty contains/1 getLong/1",
        "Decimal": "toUnscaledLong",
    },
    "org.apache.spark.sql.connector.catalog": {"Table": "name"}, "org.apache.spark.util.kvstore": {"KVStore": "read/2 write/1"},
    "org.apache.spark.sql.connector.read.streaming": {"Offset": "json", "SparkDataStream": "initialOffset deserializeOffset/1"},
    "org.apache.spark.sql.util": {"CaseInsensitiveStringMap": "new/1 asCaseSensitiveMap"},
    "org.apache.spark.sql.catalyst.catalog": {"SessionCatalog": "getTableMetadata/1", "CatalogTable": "provider location"},
    "org.apache.spark.sql.catalyst.parser": {"ParserInterface": "parseTableIdentifier/1 parseQuery/1"},
    "org.apache.spark.sql.catalyst.encoders": {"ExpressionEncoder": "apply/1"},
    "org.apache.spark.sql.catalyst.streaming": {"StreamingRelationV2": "sourceName extraOptions table copy$default$4"},
    "org.apache.spark.sql.catalyst.trees": {
        "TreeNode": "children withNewChildren/1 transform/1",
        "UnaryLike": "child",
        "TreePatternBits": "containsPattern/1",
        "TreePattern": "CURRENT_LIKE PLAN_EXPRESSION AGGREGATE WINDOW LITERAL",
    },
    "org.apache.spark.sql.catalyst.util": {
        "IntervalUtils": "stringToInterval/1", "GenericArrayData": "new/1 update/2",
        "HyperLogLogPlusPlusHelper": "RAW_ESTIMATE_DATA BIAS_DATA THRESHOLDS",
    },
    "org.apache.spark.sql.catalyst.plans": {
        "QueryPlan": "output expressions references deterministic schema sameResult/1 transformAllExpressions/1",
        "JoinType": "sql",
    },
    "org.apache.spark.sql.catalyst.plans.physical": {"SinglePartition$": "", "ShufflePartitionIdPassThrough": "new/2"},
    "org.apache.spark.sql.catalyst.plans.logical": {
        "LogicalPlan": "isStreaming maxRows metadataOutput",
        "AnalysisHelper": "setAnalyzed",
        "Project": "new/2 projectList",
        "Filter": "condition",
        "Join": "joinType",
        "Generate": "generator outer child",
        "Aggregate": "groupingExpressions aggregateExpressions",
        "EventTimeWatermark": "nodeId eventTime delay child copy/4",
        "MapInArrow": "functionExpr isBarrier profile copy/5",
        "LocalRelation": "new/4 data stream copy/4",
        "Repartition": "numPartitions shuffle copy/3",
        "WithCTE": "plan cteDefs",
        "CTERelationDef": "id child",
        "CTERelationRef": "cteId",
    },
    "org.apache.spark.sql.catalyst.expressions": {
        "Expression": "deterministic foldable nullable dataType eval/1 canonicalized sql semanticEquals/1 prettyName",
        "NamedExpression": "name exprId metadata",
        "Attribute": "withName/1",
        "AttributeReference": "new/6",
        "AttributeSet": "toSeq",
        "UserDefinedExpression": "name",
        "ExpressionWithRandomSeed": "",
        "PlanExpression": "plan",
        "CurrentBatchTimestamp": "new/3",
        "CurrentDate": "timeZoneId",
        "LocalTimestamp": "timeZoneId",
        "FileSourceMetadataAttribute$": "unapply/1",
        "NamedLambdaVariable": "",
        "ExprId": "id", "Literal": "new/2 value",
        "Alias": "new/6 child",
        "With": "",
        "CommonExpressionDef": "id",
        "CommonExpressionRef": "id",
        "TimeZoneAwareExpression": "zoneId",
        "RuntimeReplaceable": "replacement",
        "DirectShufflePartitionID": "new/1",
        "NumericEvalContext": "evalMode",
        "BinaryArithmetic": "evalMode",
        "Cast": "evalMode",
        "UnaryMinus": "failOnError",
        "Abs": "failOnError",
    },
    "org.apache.spark.sql.catalyst.expressions.aggregate": {
        "AggregateExpression": "aggregateFunction isDistinct filter",
        "AggregateFunction": "aggBufferAttributes",
        "DeclarativeAggregate": "evaluateExpression",
        "Sum": "evalContext",
        "Average": "evalMode",
        "First": "ignoreNulls",
        "Last": "ignoreNulls",
        "HyperLogLogPlusPlus": "relativeSD",
    },
    "org.apache.spark.sql.execution": {
        "LogicalRDD": "rdd",
        "QueryExecution": "analyzed optimizedPlan executedPlan toRdd observedMetrics",
        "CommandExecutionMode": "ALL",
    },
    "org.apache.spark.sql.execution.adaptive": {"AdaptiveSparkPlanExec": "executedPlan", "QueryStageExec": "plan"},
    "org.apache.spark.sql.execution.columnar": {"InMemoryTableScanExec": "relation", "InMemoryRelation": "cachedPlan"},
    "org.apache.spark.sql.execution.exchange": {"ReusedExchangeExec": "child"},
    "org.apache.spark.sql.execution.datasources": {
        "DataSource": "lookupDataSource/2 options className copy$default$7",
        "DataSourceManager": "lookupDataSource/1",
        "LogicalRelation": "relation withMetadataColumns",
        "HadoopFsRelation": "location",
        "FileIndex": "rootPaths",
        "PartitioningAwareFileIndex": "allFiles",
    },
    "org.apache.spark.sql.execution.datasources.v2": {
        "StreamingDataSourceV2ScanRelation": "relation scan output stream copy/6",
    },
    "org.apache.spark.sql.execution.datasources.v2.python": {"UserDefinedPythonDataSource": "dataSourceCls"},
    "org.apache.spark.sql.execution.streaming": {"Source": "getBatch/2"},
    "org.apache.spark.sql.execution.streaming.runtime": {
        "CompactibleFileStreamLog": "compactInterval batchIdToPath/1 serialize/2 allFiles",
        "StreamingQueryWrapper": "streamingQuery awaitTermination awaitTermination/1 exception lastProgress recentProgress",
        "StreamExecution": (
            "logicalPlan lastExecution availableOffsets latestOffsets getStartOffsetsOfLatestBatch isInterruptionException/2 "
            "awaitProgressLock awaitInitialization/1 sparkSessionForStream offsetLog sources resolvedCheckpointRoot outputMode id runId"
        ),
        "StreamingRelation": "sourceName dataSource copy$default$1",
        "StreamingExecutionRelation": "source output",
        "StreamProgress": "get/1",
        "WatermarkPropagator$": "noop",
    },
    "org.apache.spark.sql.execution.streaming.operators.stateful": {
        "EventTimeWatermarkExec": "nodeId eventTimeStats delayMs",
        "EventTimeStatsAccum": "value",
        "EventTimeStats": "count max",
    },
    "org.apache.spark.sql.execution.streaming.sources": {
        "MemorySink": "new write/3",
        "MemoryPlan": "new/2",
        "WriteToMicroBatchDataSourceV1": "child",
    },
    "org.apache.spark.sql.execution.streaming.sinks": {
        "FileStreamSink": "new/5 addBatch/2",
        "FileStreamSinkLog": "new/4 VERSION",
    },
    "org.apache.spark.sql.execution.streaming.state": {"StateStore$": "stop"},
    "org.apache.spark.sql.streaming": {"StreamingQueryProgress": "batchId json", "StreamingQueryProgress$": "fromJson/1"},
    "org.apache.spark.sql.streaming.ui": {"StreamingQueryProgressWrapper": "new/1 getUniqueId/3"},
    "org.apache.spark.sql.execution.streaming.checkpointing": {
        "HDFSMetadataLog": "getLatestBatchId add/2 get/1 listBatchesOnDisk",
        "OffsetSeqLog": "offsetSeqMetadataForBatchId/1",
        "OffsetSeqMetadata": "batchTimestampMs",
    },
}
MEMBERS_OF: Mapping[str, Members] = {
    "4.1": {
        "org.apache.spark.sql.execution": {"LogicalRDD": "new/9", "LogicalRDD$": "fromDataset/3"},
        "org.apache.spark.sql.execution.streaming.checkpointing": {"OffsetSeq": "toStreamProgress/1"},
        "org.apache.spark.sql.execution.streaming.runtime": {"IncrementalExecution": "new/15"},
    },
    "4.2": {
        "org.apache.spark.sql.execution": {"LogicalRDD": "new/9", "LogicalRDD$": "fromDataset/3"},
        "org.apache.spark.sql.execution.streaming.checkpointing": {"OffsetSeqBase": "toStreamProgress/2"},
        "org.apache.spark.sql.execution.streaming.runtime": {"IncrementalExecution": "new/15", "MicroBatchExecution": "sourceIdMap"},
    },
    "4.3": {
        "org.apache.spark.sql.execution": {"LogicalRDD": "new/10", "LogicalRDD$": "fromDataset/4"},
        "org.apache.spark.sql.execution.streaming.checkpointing": {"OffsetSeqBase": "toStreamProgress/2"},
        "org.apache.spark.sql.execution.streaming.runtime": {"IncrementalExecution": "new/16", "MicroBatchExecution": "sourceIdMap"},
        "org.apache.spark.sql.catalyst.expressions": {
            "Floor": "failOnError",
            "Ceil": "failOnError",
            "CurrentTimestampNanos": "",
            "LocalTimestampNanos": "timeZoneId",
        },
    },
}
"""By Spark version: members that not all versions have."""

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_STATEFUL_NODES = """
    Deduplicate DeduplicateWithinWatermark Distinct Except Intersect Offset Pivot Sort Tail GlobalLimit LocalLimit Window CoGroup MapGroups
    FlatMapGroupsWithState FlatMapGroupsInPandas FlatMapGroupsInArrow FlatMapCoGroupsInPandas FlatMapCoGroupsInArrow
    FlatMapGroupsInPandasWithState TransformWithState TransformWithStateInPySpark UpdateEventTimeWatermarkColumn Sample
"""
_PLAIN_NODES = "SubqueryAlias RepartitionByExpression RebalancePartitions ResolvedHint CollectMetrics View Range OneRowRelation"
_EXPRESSIONS = (
    "CurrentTimestamp Now CurrentTime InputFileName InputFileBlockStart InputFileBlockLength MonotonicallyIncreasingID SparkPartitionID"
)
_STAGES = "org.apache.spark.sql.execution"
NAMES: tuple[str, ...] = (
    *(f"{_LOGICAL}.{name}" for name in (*_STATEFUL_NODES.split(), *_PLAIN_NODES.split())),
    f"{_STAGES}.datasources.v2.StreamingDataSourceV2Relation",
    f"{_STAGES}.streaming.runtime.FileStreamSource",
    *(f"{_STAGES}.streaming.{name}" for name in ("runtime.MemoryStreamTable", "sources.TextSocketTable")),
    f"{_STAGES}.datasources.v2.python.PythonTable",
    *(f"org.apache.spark.sql.catalyst.expressions.{name}" for name in _EXPRESSIONS.split()),
    *(f"{_STAGES}.adaptive.{name}" for name in INNER_PLANS if name.endswith("StageExec")),
    *FILE_FORMATS.values(),
    FILE_STATUS,
    FILE_MANAGER,
    *aggregation.CLASSES,
    MASTER,
    WORKER,
)
"""Classes that are recognised by name, started, or named in a setting. Methods that are called on them are in ``MEMBERS``, with the class
that declares them."""

Names = Mapping[str, str]
"""By Python module: names that it has. ``f(a,b)`` is a function with parameters a and b among others, ``C.a`` an attribute of a class or
one that its constructor sets."""

PYTHON: Names = {
    "pyspark.sql.classic.column": "Column",
    "pyspark.sql.pandas.types": "to_arrow_type(prefers_large_types) from_arrow_type(prefer_timestamp_ntz)",
    "pyspark.sql.types": "_parse_datatype_json_string",
    "pyspark.find_spark_home": "_find_spark_home",
    "pyspark.core.context": "SparkContext",
    "pyspark.worker": "handle_worker_exception main",
    "pyspark.daemon": "manager",
    "pyspark.serializers": "CloudPickleSerializer.dumps",
    "pyspark.logger": "PySparkLogger.getLogger",
    "pyspark.sql.streaming.listener": "StreamingQueryProgress.fromJson QueryProgressEvent",
    "pyspark.errors.exceptions.captured": "CapturedException._desc CapturedException._origin",
    "py4j.java_gateway": "get_field",
    "py4j.clientserver": "JavaClient.get_thread_connection",
}
"""Names of PySpark and py4j that are not documented."""
PYTHON_OF: Mapping[str, Names] = {
    "4.1": {"pyspark.sql.pandas.types": "to_arrow_type(timestamp_utc)"},
    "4.2": {"pyspark.sql.pandas.types": "to_arrow_type(timezone)"},
    "4.3": {"pyspark.sql.pandas.types": "to_arrow_type(timezone)"},
}
"""By Spark version: names that not all versions have."""

Signature = tuple[str, str, int]
"""Owner, name and number of parameters."""
_DECLARED = re.compile(r"[ \[]([\w.$]+)\.([\w$]+)\(([^()]*)\)")
_passed: WeakSet[Any] = WeakSet()
"""Connections to the JVMs that fulfil the contract."""


def check_contract(session: SparkSession) -> None:
    """Raise a SessionError if Headrace does not support this Spark, or if it lacks anything on the lists. The error names all of it.

    A JVM that passed is not checked again.
    """
    jvm = connection(session)
    if jvm in _passed:
        return
    missing = missing_of(session, check_same_version(session.version))
    if not missing and not takes_for_stop(session, STOP_TEXT):
        missing.append("a query that ends without a failure when Python reports an interrupted call")
    if missing:
        raise SessionError(
            "this version of Spark lacks internals that Headrace relies on",
            where="session",
            wanted="; ".join(missing),
            found=f"Spark {session.version}",
            hint=f'pip install "{REQUIREMENT}", from Apache: other builds of Spark may differ',
        )
    _passed.add(jvm)


def missing_of(session: SparkSession, version: str) -> list[str]:
    """Everything on the lists for a version of Spark that is not there."""
    return [
        *missing_members(session, MEMBERS),
        *(each for module in (buffers, contract_front, streaming_writes) for each in missing_members(session, module.MEMBERS)),
        *missing_members(session, MEMBERS_OF[version]),
        *missing_members(session, relied_on.MEMBERS),
        *relied_on.missing_fields(session),
        *missing_classes(session, (*NAMES, *contract_front.NAMES)),
        *missing_classes(session, expression_tree.classes(version)),
        *missing_names(PYTHON),
        *missing_names(contract_front.PYTHON),
        *missing_names(relied_on.PYTHON),
        *missing_names(PYTHON_OF[version]),
    ]


def missing_members(session: SparkSession, wanted: Members) -> list[str]:
    """Wanted classes, methods and constructors that this Spark does not have."""
    jvm, loader = jvm_of(session), _loader(session)
    found, absent = jvm.java.util.ArrayList(), []
    expected = [(f"{package}.{name}", members) for package, classes in wanted.items() for name, members in classes.items()]
    present = []
    for name, members in expected:
        try:
            loaded = loader.loadClass(name)
        except Exception as failure:
            _log.debug("class %s cannot be loaded: %s", name, failure)
            absent.append(f"class {name}")
            continue
        present.append((name, members))
        found.add(loaded.getDeclaredMethods())
        if "new" in members:
            found.add(loaded.getDeclaredConstructors())
    # One text for all classes: asking for each method would be a round trip for each.
    declared = _declared(str(jvm.java.util.Arrays.deepToString(found.toArray())))
    for name, members in present:
        absent += [f"{name}.{member}" for member in members.split() if _signature(name, member) not in declared]
    return absent


def missing_classes(session: SparkSession, wanted: Iterable[str]) -> list[str]:
    """Wanted classes that this Spark does not have. Class files are looked up, but not loaded."""
    loader = _loader(session)
    return [f"class {name}" for name in wanted if loader.getResource(f"{name.replace('.', '/')}.class") is None]


def missing_names(wanted: Names) -> Iterator[str]:
    """Wanted names that Python modules do not have, or do not have with these parameters."""
    for module, names in wanted.items():
        try:
            loaded = importlib.import_module(module)
        except ImportError as failure:
            _log.debug("module %s cannot be imported: %s", module, failure)
            yield f"module {module}"
            continue
        yield from (f"{module}.{name}" for name in names.split() if not _has(loaded, name))


def _has(thing: Any, wanted: str) -> bool:
    """True if an object has an attribute; ``a.b`` is the attribute b of its attribute a, ``f(x)`` a function with a parameter x."""
    path, _, parameters = wanted.rstrip(")").partition("(")
    for name in path.split("."):
        if not hasattr(thing, name):
            # Attributes that a constructor sets are not there before an object is made.
            return inspect.isclass(thing) and name in getattr(getattr(thing.__init__, "__code__", None), "co_names", ())
        thing = getattr(thing, name)
    return not parameters or set(parameters.split(",")) <= set(inspect.signature(thing).parameters)


def _loader(session: SparkSession) -> Any:
    return java_session(session).getClass().getClassLoader()


def _declared(text: str) -> set[Signature]:
    """Parse Java's text of methods and constructors: ``public int a.b.C.d(int,long)``, ``public a.b.C(int)``."""
    return {(owner, name, parameters.count(",") + 1 if parameters else 0) for owner, name, parameters in _DECLARED.findall(text)}


def _signature(class_name: str, member: str) -> Signature:
    """The signature of a member of the contract. Java prints a constructor as a member of the package, with the name of its class."""
    name, _, parameters = member.partition("/")
    package, _, simple = class_name.rpartition(".")
    owner, name = (package, simple) if name == "new" else (class_name, name)
    return owner, name, int(parameters or 0)
