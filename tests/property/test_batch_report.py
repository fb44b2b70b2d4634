"""A report that went through the progress's JSON is the report that the query's own policy got, and gives the same observation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.batch_report import BatchReport, sources_of
from headrace.control.observation import Observation
from headrace.control.observing import Batch, observe
from headrace.ids import SLOTS, StoreId, WriterId
from headrace.runtime.progress import BatchProgress, Waiting
from headrace.runtime.reports import InstanceReport
from headrace.state.manifest import Manifest, StoreState
from headrace.state.routing import Routing
from headrace.state.run import RunRef
from tests.examples import examples

NAMES = ("sum", "join", "process")
ROWS = st.integers(0, 10**9)
SECONDS = st.floats(0, 1e4)


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    """Routings as they come about: rescaled, with slots moved or cut, with hot slots spread, with windows being recreated."""
    before = Routing.even(draw(st.integers(1, 5)))
    kind = draw(st.sampled_from(("even", "moved", "spread", "recreating")))
    if kind == "moved":
        lo = draw(st.integers(0, SLOTS - 2)) + draw(st.sampled_from((0.0, 0.25, 0.5)))
        return before.moved([(lo, lo + 1)], to=before.instances - 1)
    if kind == "spread":
        return before.spreading(draw(st.sets(st.integers(0, SLOTS - 1), max_size=5)))
    if kind == "recreating":
        after = before.rescaled(draw(st.integers(1, 5)))
        return after.recreating(before, draw(st.integers(0, 10**15)), (6_000_000, 2_000_000, 0))
    return before


@st.composite
def instance_reports(draw: st.DrawFn, name: str, task: int) -> InstanceReport:
    slots = st.integers(0, SLOTS - 1)
    refs = st.builds(RunRef, st.sampled_from(("a", "b", "c")), ROWS, st.just(0), ROWS, st.integers(0, 99))
    return InstanceReport(
        instance=task,
        operator=name,
        runs={name: tuple(draw(st.lists(refs, max_size=2)))},
        rows=draw(ROWS),
        rows_late=draw(ROWS),
        rows_out=draw(ROWS),
        rows_per_slot=tuple(draw(st.dictionaries(slots, st.integers(1, 10**9), max_size=4)).items()),
        cpu_s=draw(SECONDS),
        wall_s=draw(SECONDS),
        phases_ms={"read": draw(SECONDS)},
        host=draw(st.sampled_from(("", "here", "там"))),
        executor=draw(st.sampled_from(("", "3"))),
    )


@st.composite
def queries(draw: st.DrawFn) -> list[BatchProgress]:
    """The progress of a few batches, one after the other, with the same routing."""
    names = NAMES[: draw(st.integers(1, 3))]
    routing = {name: draw(routings()) for name in names}
    inputs = {name: (*names[:at], sources_of(name)) for at, name in enumerate(names)}
    begin_s, trigger_s = draw(st.floats(1e9, 2e9)), draw(st.sampled_from((0.0, 0.5, 10.0)))
    found = []
    for version in range(draw(st.integers(1, 4))):
        end_s = begin_s + draw(st.floats(0.001, 100))
        found.append(
            BatchProgress(
                version=version,
                times_s=(begin_s, end_s, begin_s),
                replayed=draw(st.booleans()),
                routing=routing,
                phases_ms={"plan": draw(SECONDS)},
                reports={name: [draw(instance_reports(name, task)) for task in range(len(routing[name].parts))] for name in names},
                manifest=Manifest(version, WriterId("7x1a2b3c4d"), {StoreId(name): StoreState() for name in names}),
                readers=names[:1],
                changes=(),
                backlog=draw(st.builds(Waiting, *[st.none() | ROWS] * 3, st.none() | SECONDS)),
                inputs=inputs,
                trigger_s=trigger_s,
            )
        )
        begin_s = end_s + draw(st.floats(0.001, 20))
    return found


def recorded(progress: BatchProgress) -> BatchReport:
    """The report as a replay reads it."""
    return BatchReport.from_json(json.loads(json.dumps(progress.headrace())))


def plain(observation: Observation | None) -> Any:
    """An observation in values that can be compared."""
    if observation is None:
        return None
    loads = [vars(load) for load in observation.operators]
    values = [{key: each.tolist() if isinstance(each, np.ndarray) else each for key, each in load.items()} for load in loads]
    return observation.at_s, values, dict(observation.inputs), dict(observation.source_rows_per_s)


@settings(max_examples=examples(100), deadline=None)
@given(queries())
def test_a_recorded_report_is_read_back_as_it_was(query: list[BatchProgress]) -> None:
    for progress in query:
        assert recorded(progress) == progress.report()


@settings(max_examples=examples(60), deadline=None)
@given(queries(), st.floats(0.1, 60))
def test_a_replay_observes_what_the_query_observed(query: list[BatchProgress], period_s: float) -> None:
    lived = [Batch.of(progress.report()) for progress in query]
    replayed = [Batch.of(recorded(progress)) for progress in query]
    for at_s in (lived[-1].end_s, lived[-1].end_s + period_s):
        assert plain(observe(replayed, at_s, period_s)) == plain(observe(lived, at_s, period_s))
