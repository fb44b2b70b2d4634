"""Runs the examples in docstrings of the modules that need no Spark."""

from __future__ import annotations

import doctest
import importlib

import pytest

PURE_MODULES = (
    "headrace.cli.state",
    "headrace.control.assignment",
    "headrace.control.availability.backups",
    "headrace.control.availability.scheduling",
    "headrace.control.availability.units",
    "headrace.control.baselines",
    "headrace.control.bottleneck",
    "headrace.control.checks",
    "headrace.control.correlation",
    "headrace.control.decisions",
    "headrace.control.elastic_manager",
    "headrace.control.handover",
    "headrace.control.homes",
    "headrace.control.hot",
    "headrace.control.load_balancer",
    "headrace.control.network",
    "headrace.control.observation",
    "headrace.control.pool",
    "headrace.control.rates",
    "headrace.control.replicas.together",
    "headrace.control.replicas.transport",
    "headrace.control.resilient",
    "headrace.control.ring",
    "headrace.control.ring_copies",
    "headrace.control.ring_view",
    "headrace.control.shedding.groups",
    "headrace.control.shedding.networks",
    "headrace.control.shedding.plan",
    "headrace.control.shedding.program",
    "headrace.control.shedding.quadtree",
    "headrace.control.tiers",
    "headrace.control.trees",
    "headrace.demo.calls",
    "headrace.demo.measure",
    "headrace.demo.page",
    "headrace.demo.view",
    "headrace.errors",
    "headrace.graph.processes",
    "headrace.ids",
    "headrace.operators.arrow_fit",
    "headrace.operators.description",
    "headrace.operators.key_index",
    "headrace.operators.keyed_state",
    "headrace.operators.matching",
    "headrace.operators.processor",
    "headrace.report.plots",
    "headrace.runtime.pool",
    "headrace.sim.placed",
    "headrace.state.blocks",
    "headrace.state.recreation",
    "headrace.state.working",
)


@pytest.mark.parametrize("name", PURE_MODULES)
def test_the_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, f"{name} has no examples: take it off the list or write one"
    assert result.failed == 0
