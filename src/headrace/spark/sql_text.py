"""Queries as text: Spark's parser alone, and streams whose batches are small, for a first look at a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import require
from headrace.spark.gateway import class_name, has_method, java_session, jvm_of, scala_map
from headrace.spark.plans import analyzed, frame_of
from headrace.spark.streaming import reads_stream, source_name, source_options
from headrace.spark.trees import rewrite

_OPTIONS_AT = 7
"""Which parameter of Spark's ``DataSource`` the options are."""
_FIRST_API = "StreamingRelation"
_SECOND_API = "StreamingRelationV2"


def parse_query(session: SparkSession, text: str) -> None:
    """Raise Spark's ParseException unless a text is one query. Commands, which ``spark.sql`` would run at once, are no queries."""
    java_session(session).sessionState().sqlParser().parseQuery(text)


def with_small_batches(frame: DataFrame, files: int, rows: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
    """The same stream with so many files, or rows of a topic, in a batch, and in words what each source then gives.

    Files that have been read stay where they are, whatever the option ``cleanSource`` says. Queries of the result belong to ``session``.
    """
    said: list[str] = []

    def replacement(node: Any) -> Any | None:
        if not reads_stream(node):
            return None
        name, given = source_name(node), {key.lower(): value for key, value in source_options(node).items()}
        if name.startswith("FileSource"):
            keeps = {"cleanSource": "off"} if "cleansource" in given else {}
            if "maxbytespertrigger" in given or given.get("maxfilespertrigger", str(files)) != str(files):
                said.append(f"{name}: as much in a batch as its options say")
                return _with_options(session, node, keeps) if keeps else None
            said.append(f"{name}: {files} file{'s' if files > 1 else ''} a batch, the oldest first")
            return _with_options(session, node, {"maxFilesPerTrigger": str(files), **keeps})
        if name.lower() == "kafka" and class_name(node) == _SECOND_API and "maxoffsetspertrigger" not in given:
            said.append(f"kafka: {rows} rows a batch")
            return _with_options(session, node, {"maxOffsetsPerTrigger": str(rows)})
        said.append(f"{name}: its own batches")
        return None

    plan = rewrite(session, analyzed(frame), replacement)
    return frame_of(session, plan), said


def copy_of(session: SparkSession) -> SparkSession:
    """A session with the same settings, views and functions, and a list of queries of its own.

    Whoever waits for the queries of the session itself hears nothing of those of the copy.
    """
    return SparkSession(session.sparkContext, java_session(session).cloneSession())


def _with_options(session: SparkSession, relation: Any, wanted_options: Mapping[str, str]) -> Any:
    """A leaf that reads the same source with these options. Names of options differ by more than case."""
    names = {name.lower() for name in wanted_options}
    options = {name: value for name, value in source_options(relation).items() if name.lower() not in names} | dict(wanted_options)
    if class_name(relation) == _FIRST_API:
        before = relation.dataSource()
        source = _copied(before, _OPTIONS_AT, before.options(), scala_map(session, options))
        return _copied(relation, 1, before, source)
    java = jvm_of(session).java.util.HashMap()
    for each, text in options.items():
        java.put(each, text)
    wanted = jvm_of(session).org.apache.spark.sql.util.CaseInsensitiveStringMap(java)
    return _copied(relation, 4, relation.extraOptions(), wanted)


def _copied(node: Any, position: int, before: Any, value: Any) -> Any:
    """A case class with one parameter changed. How many there are differs between versions of Spark."""
    require(bool(getattr(node, f"copy$default${position}")().equals(before)), f"parameter {position} of {class_name(node)} is what it was")
    given: list[Any] = []
    while has_method(node, f"copy$default${len(given) + 1}"):
        at = len(given) + 1
        given.append(value if at == position else getattr(node, f"copy$default${at}")())
    return node.copy(*given)
