"""What the documentation shows must run: docstrings of the user's API, the tests in docs/testing.md, and the programs in examples/."""

from __future__ import annotations

import doctest
import inspect
import re
import runpy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

import headrace as hr
from headrace.testing import QueryTest
from headrace.testing.kafka import why_not

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
KINDS = (hr.stream, hr.Stream, hr.GroupedStream, hr.count_window, hr.shed, hr.coverage, hr.enable, hr.writeStream, QueryTest)
"""Functions and classes whose docstrings have examples that need Spark."""
LONG = ("elastic", "windows", "stateful_processor", "kafka")
"""`test_elastic.py`, `test_user_state.py`, `tests/kafka` and other examples say the same in less time."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def globs(spark: SparkSession, tmp_path: Path) -> dict[str, Any]:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [("ada", moment, 60), ("bob", moment, 10), ("ada", moment, 30)]
    spark.createDataFrame(rows, "src string, ts timestamp, seconds long").write.parquet(str(tmp_path / "calls"))
    frame = spark.readStream.schema("src string, ts timestamp, seconds long").parquet(str(tmp_path / "calls"))
    return {
        "spark": spark,
        "F": F,
        "hr": hr,
        "pa": pa,
        "pc": pc,
        "pd": pd,
        "Row": Row,
        "StatefulProcessor": StatefulProcessor,
        "calls": hr.stream(frame),
        "folder": str(tmp_path / "calls"),
        "QueryTest": QueryTest,
    }


def test_the_tests_in_the_documentation_pass(spark: SparkSession, tmp_path: Path) -> None:
    page: dict[str, Any] = {}
    for block in BLOCK.findall((ROOT / "docs" / "testing.md").read_text()):
        exec(block, page)
    tests = [each for name, each in page.items() if name.startswith("test_")]
    assert len(tests) >= 3
    fixtures = {"spark": spark, "tmp_path": tmp_path}
    for test in tests:
        test(**{name: fixtures[name] for name in inspect.signature(test).parameters})


def test_docstrings_of_the_user_s_api_run(globs: dict[str, Any]) -> None:
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    tests = [t for kind in KINDS for t in finder.find(kind, globs=globs) if t.examples]
    assert len(tests) >= 8
    for test in tests:
        runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=[pytest.mark.extra] if p.stem in LONG else []) for p in EXAMPLES])
def test_the_example_runs(path: Path, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.stem == "kafka" and (why := why_not()) is not None:
        pytest.skip(why)
    runpy.run_path(str(path))["main"](spark, str(tmp_path))
    assert capsys.readouterr().out.strip(), "an example shows something"


def test_there_are_examples() -> None:
    assert {p.stem for p in EXAMPLES} >= {"running_totals", "heavy_customers", "drop_duplicates"}
