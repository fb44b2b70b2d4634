"""Runs the examples in docstrings of all modules that need no Spark. Examples are found; they need not be registered."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
WITH_SPARK = {
    "headrace.api.enabling",
    "headrace.api.frames",
    "headrace.api.grouped",
    "headrace.api.naming",
    "headrace.api.shedding",
    "headrace.api.stream",
    "headrace.api.windows",
    "headrace.testing.query_test",
}
"""Modules whose examples need Spark; tests/integration/test_examples.py runs them."""


def with_examples() -> list[str]:
    files = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]
    return [".".join(["headrace", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__") for path in files]


@pytest.mark.parametrize("name", [name for name in with_examples() if name not in WITH_SPARK])
def test_the_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_modules_that_need_spark_are_there() -> None:
    assert set(with_examples()) >= WITH_SPARK
