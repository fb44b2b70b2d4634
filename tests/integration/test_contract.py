"""The contract with Spark's internals: this Spark fulfils it, and one that does not is refused by name."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import SessionError
from headrace.runtime import session
from headrace.spark import contract, event_times, gateway, plan_text, plans, stateful, steps, streaming, versions

pytestmark = pytest.mark.spark

PLANS = "org.apache.spark.sql.catalyst.plans.logical"
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
OLDER = {"TransformWithStateInPandas"}
"""Names that only versions of Spark before the supported ones have."""

FREE = ("spark.executorEnv.", "spark.shuffle.io.", "spark.sql.streaming.checkpointFileManagerClass")
"""Settings that Spark reads without declaring them."""


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no JVM had been checked yet."""
    monkeypatch.setattr(contract, "_passed", WeakSet())


def test_this_spark_fulfils_the_contract(spark: SparkSession, unchecked: None) -> None:
    contract.check_contract(spark)
    assert contract.missing_of(spark, versions.pyspark_version()) == []


def test_all_that_is_missing_is_told_in_one_error(spark: SparkSession, unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {PLANS: {"Project": "new/2 projectList colour copy/7 new/9", "Projekt": "projectList"}}
    monkeypatch.setattr(contract, "MEMBERS", members)
    monkeypatch.setattr(contract, "NAMES", (f"{PLANS}.Sort", f"{PLANS}.Sorted"))
    python = {
        "pyspark.sql.types": "LongType LongType.json LongType.gone _gone StructField.dataType StructField.gone",
        "pyspark.gone": "x",
    }
    monkeypatch.setattr(contract, "PYTHON", python)
    with pytest.raises(SessionError) as refused:
        contract.check_contract(spark)
    assert refused.value.wanted.split("; ") == [
        f"class {PLANS}.Projekt",
        f"{PLANS}.Project.colour",
        f"{PLANS}.Project.copy/7",
        f"{PLANS}.Project.new/9",
        f"class {PLANS}.Sorted",
        "pyspark.sql.types.LongType.gone",
        "pyspark.sql.types._gone",
        "pyspark.sql.types.StructField.gone",
        "module pyspark.gone",
    ]
    assert refused.value.found == f"Spark {spark.version}"


def test_a_stream_on_another_spark_is_refused(spark: SparkSession, unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "MEMBERS", {"org.apache.spark.sql.execution": {"LogicalRDD": "new/99"}})
    rate = spark.readStream.format("rate").load()
    for _ in range(2):
        with pytest.raises(SessionError, match=r"lacks internals.*LogicalRDD\.new/99; found Spark"):
            hr.stream(rate)


def test_a_session_on_another_spark_is_refused(spark: SparkSession, unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "MEMBERS", {"org.apache.spark.sql.execution": {"LogicalRDD": "new/99"}})
    with pytest.raises(SessionError, match=r"lacks internals.*LogicalRDD\.new/99; found Spark"):
        hr.session(master=spark.sparkContext.master)


def test_a_spark_that_would_take_a_stop_for_a_failure_is_refused(
    spark: SparkSession, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streaming.takes_for_stop(spark, streaming.STOP_TEXT)
    monkeypatch.setattr(contract, "STOP_TEXT", "interrupted")
    with pytest.raises(SessionError, match="ends without a failure"):
        contract.check_contract(spark)


def test_a_jvm_is_checked_once(spark: SparkSession, unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    contract.check_contract(spark)

    def again(*_: Any) -> list[str]:
        raise AssertionError("checked again")

    monkeypatch.setattr(contract, "missing_members", again)
    contract.check_contract(spark)
    contract.check_contract(spark.newSession())


@pytest.mark.parametrize(
    "names",
    [
        set(stateful.STATEFUL) | set(stateful.SEVERAL_ROWS),
        plan_text._CHANGE_NO_ROW,
        steps.BATCH_STEPS,
        plans._ROWS_AT_HAND,
        set(streaming.RELATIONS) | {streaming.FILE_SOURCE},
        set(event_times.INNER_PLANS),
    ],
)
def test_nodes_that_decide_about_correctness_are_in_the_contract(names: set[str]) -> None:
    known = {name.rsplit(".", 1)[1] for name in contract.NAMES} | {name for classes in contract.MEMBERS.values() for name in classes}
    assert names - OLDER <= known


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (PLANS, set(steps.USER_NAMES)),
        (EXPRESSIONS, steps.CHEAP),
    ],
)
def test_every_class_that_the_compiler_knows_by_name_exists(spark: SparkSession, package: str, names: set[str]) -> None:
    assert contract.missing_classes(spark, [f"{package}.{name}" for name in sorted(names)]) == []


def test_a_spark_of_another_version_is_refused_whoever_made_the_session(
    spark: SparkSession, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = spark.readStream.format("rate").load()
    # PySpark asks the JVM once, and keeps the answer in the session.
    monkeypatch.setitem(vars(rate.sparkSession), "version", "4.4.0")
    with pytest.raises(SessionError, match=r"wanted Spark 4\.1, 4\.2 or 4\.3; found Spark 4\.4\.0"):
        hr.stream(rate)


@pytest.mark.parametrize("version", versions.SUPPORTED)
def test_what_differs_between_versions_is_told_apart(spark: SparkSession, version: str) -> None:
    """The lists of another version fit this Spark only if both are called in the same way."""
    same = versions.DIALECTS[version] == versions.dialect()
    assert (contract.missing_of(spark, version) == []) is same


def test_spark_knows_the_settings_that_headrace_sets(spark: SparkSession) -> None:
    """Spark ignores a name that it does not know."""
    known = gateway.singleton(gateway.jvm_of(spark).org.apache.spark.internal.config, "ConfigEntry")
    groups = (session.SETTINGS, session.LOCAL_SETTINGS, session.OWN_SETTINGS, session.FIXED_WIDTH_SETTINGS, (session.ADAPTIVE_STREAMS,))
    names = {name for group in groups for name in group if not name.startswith(FREE)}
    assert len(names) > 10
    assert [name for name in sorted(names) if known.findEntry(name) is None] == []
