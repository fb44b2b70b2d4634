"""The schedule of a step: which operators run, in which jobs, and where their results go."""

from __future__ import annotations

import pytest

from headrace.runtime.schedule import Destination, Job, Next, OperatorShape, Staged, ToSink, plan_step

Chains = list[list[tuple[str, Destination]]]


def chains(jobs: tuple[Job, ...]) -> Chains:
    return [[(stage.operator, stage.destination) for stage in job.stages] for job in jobs]


def source(name: str, **more: object) -> OperatorShape:
    return OperatorShape(name, reads_source=True, **more)  # type: ignore[arg-type]


def test_an_operator_that_waits_for_the_watermark_feeds_nobody_in_the_first_step() -> None:
    shapes = [source("window", only_reader="top"), OperatorShape("top", ("window",))]
    assert chains(plan_step(shapes)) == [[("window", Staged())]]


def test_an_operator_that_emits_at_once_shares_a_job_with_its_only_reader() -> None:
    shapes = [
        source("dedup", only_reader="join", emits_at_once=True),
        OperatorShape("join", ("dedup",), only_reader="count", emits_at_once=True),
        OperatorShape("count", ("join",)),
    ]
    assert chains(plan_step(shapes)) == [[("dedup", Next("join")), ("join", Next("count")), ("count", Staged())]]


def test_results_that_several_read_are_staged_and_their_job_comes_first() -> None:
    shapes = [
        source("dedup", emits_at_once=True),
        OperatorShape("a", ("dedup",), emits_at_once=True),
        OperatorShape("b", ("dedup", "a")),
    ]
    jobs = plan_step(shapes)
    assert chains(jobs) == [[("dedup", Staged())], [("a", Staged())], [("b", Staged())]]
    assert [job.needs for job in jobs] == [frozenset(), {"dedup"}, {"dedup", "a"}]


def test_operators_of_one_source_need_not_wait_for_each_other() -> None:
    assert [job.needs for job in plan_step([source("a"), source("b")])] == [frozenset(), frozenset()]


def test_results_for_a_sink_that_keeps_nothing_go_straight_to_it() -> None:
    shapes = [source("window", sink=1)]
    assert chains(plan_step(shapes)) == [[("window", ToSink(1))]]
    assert chains(plan_step(shapes, due={"window"})) == [[("window", ToSink(1))]]


def test_a_flush_runs_what_is_due_and_everything_behind_it() -> None:
    shapes = [source("a", only_reader="b"), OperatorShape("b", ("a",), only_reader="c"), OperatorShape("c", ("b",)), source("other")]
    # The flush that begins at a is small, and staged; what it gives runs through b and c in one job.
    assert chains(plan_step(shapes, due={"a"})) == [[("a", Staged())], [("b", Next("c")), ("c", Staged())]]
    assert chains(plan_step(shapes, due={"c"})) == [[("c", Staged())]]
    assert [job.needs for job in plan_step(shapes, due={"a"})] == [frozenset(), {"a"}]


def test_nothing_due_is_no_job() -> None:
    assert plan_step([source("a")], due=()) == ()


@pytest.mark.parametrize("due", [None, {"a"}, {"a", "b", "c", "d"}])
def test_every_operator_of_a_step_is_in_one_job_and_runs_after_what_it_reads(due: set[str] | None) -> None:
    shapes = [
        source("a", only_reader="b", emits_at_once=True),
        OperatorShape("b", ("a",), emits_at_once=True),
        OperatorShape("c", ("b",), only_reader=None, emits_at_once=True),
        OperatorShape("d", ("b", "c")),
    ]
    jobs = plan_step(shapes, due)
    order = [stage.operator for job in jobs for stage in job.stages]
    assert sorted(order) == ["a", "b", "c", "d"]
    done: set[str] = set()
    for job in jobs:
        assert job.needs <= done
        done.add(job.last.operator)
