"""Spark's own checks of streaming queries, with Spark's own words."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headrace.spark.gateway import jvm_of
from headrace.spark.plans import analyzed

_ENABLED = "spark.sql.streaming.unsupportedOperationCheck"


def check_streaming(frame: DataFrame, mode: str) -> None:
    """Raise Spark's AnalysisException if Spark refuses to run the DataFrame as a streaming query in this output mode."""
    session = frame.sparkSession
    if str(session.conf.get(_ENABLED, "true")).lower() != "true":
        return
    jvm = jvm_of(session)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(analyzed(frame), wanted)
