"""Each program gives the same on Spark and on Headrace, step by step; or is refused as docs/compatibility.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import headrace as hr
from tests.conformance import programs
from tests.conformance.program import NOT_YET, PROGRAMS, SPARK_REFUSES, WORKS, Program
from tests.conformance.runner import answer_to_a_backlog, answer_with_a_restart, built, compare, feeds_of

assert programs.ALL
_MARKS = [pytest.mark.extra, pytest.mark.slow, pytest.mark.spark]


def _params(claim: str) -> list[object]:
    return [pytest.param(each, id=each.name, marks=[] if each.quick else _MARKS) for each in PROGRAMS if each.claim == claim]


@pytest.mark.parametrize("program", _params(WORKS))
def test_the_results_are_sparks(spark: SparkSession, tmp_path: Path, program: Program) -> None:
    compare(spark, program, tmp_path)


WITHOUT_PAUSE = frozenset(
    """
    tumbling tumbling_update sliding sessions chained_window event_time_key window_alias by_key_and_time within_watermark_all then_windowed
    left_in_time full_in_time semi_in_time unbounded_with_watermarks join_then_window on_windows two_watermarks
    union_then_window dyn_session w_on_results window cube o_items
    """.split()  # noqa: SIM905 (a list of names)
)
"""Programs whose results depend on which rows are late, and on what falls due when."""


@pytest.mark.parametrize("program", [pytest.param(each, id=each.name, marks=_MARKS) for each in PROGRAMS if each.name in WITHOUT_PAUSE])
def test_the_results_are_sparks_if_batches_follow_one_another(spark: SparkSession, tmp_path: Path, program: Program) -> None:
    compare(spark, program, tmp_path, answer_to_a_backlog)


_RUN = [each for each in PROGRAMS if each.claim == WORKS]
NAMES_OF_PYSPARK = frozenset({"sql_args"})
"""Programs in whose plans PySpark has names that differ from start to start."""
RESTARTED = [each for at, each in enumerate(_RUN) if at % 4 == 0 or each.name in NAMES_OF_PYSPARK]


@pytest.mark.parametrize("program", [pytest.param(each, id=each.name, marks=_MARKS) for each in RESTARTED])
def test_the_results_are_sparks_after_a_restart(spark: SparkSession, tmp_path: Path, program: Program) -> None:
    compare(spark, program, tmp_path, answer_with_a_restart)


def _started(spark: SparkSession, program: Program, root: Path) -> None:
    frame, _ = built(spark, program, feeds_of(program, root), root)
    query = frame.writeStream.outputMode(program.mode).format("noop").option("checkpointLocation", str(root / "ckpt")).start()
    query.stop()


@pytest.mark.parametrize("program", _params(SPARK_REFUSES))
def test_what_spark_refuses_is_refused_with_its_words(spark: SparkSession, tmp_path: Path, program: Program) -> None:
    with pytest.raises(AnalysisException) as theirs:
        _started(spark, program, tmp_path / "spark")
    hr.enable(spark)
    try:
        with pytest.raises(AnalysisException) as ours:
            _started(spark, program, tmp_path / "ours")
    finally:
        hr.disable(spark)
    assert program.why in str(theirs.value)
    assert program.why in str(ours.value)


@pytest.mark.parametrize("program", _params(NOT_YET))
def test_what_only_headrace_lacks_is_said(spark: SparkSession, tmp_path: Path, program: Program) -> None:
    _started(spark, program, tmp_path / "spark")
    hr.enable(spark)
    try:
        with pytest.raises(hr.UnsupportedError, match=program.why):
            _started(spark, program, tmp_path / "ours")
    finally:
        hr.disable(spark)
