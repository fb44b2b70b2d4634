"""Runs the examples in docstrings of the modules that need no Spark."""

from __future__ import annotations

import doctest
import importlib

import pytest

PURE_MODULES = (
    "headrace.cli.state",
    "headrace.demo.calls",
    "headrace.demo.measure",
    "headrace.demo.page",
    "headrace.demo.view",
    "headrace.operators.description",
    "headrace.operators.matching",
    "headrace.graph.processes",
    "headrace.operators.arrow_fit",
    "headrace.operators.key_index",
    "headrace.operators.keyed_state",
    "headrace.operators.processor",
    "headrace.report.plots",
    "headrace.errors",
    "headrace.ids",
)


@pytest.mark.parametrize("name", PURE_MODULES)
def test_the_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, f"{name} has no examples: take it off the list or write one"
    assert result.failed == 0
