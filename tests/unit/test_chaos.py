"""The parts of ``headrace chaos`` that need no Spark: the plan of faults, the judge, what sinks recorded, and the report."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace.chaos.campaign import Campaign, Rules
from headrace.chaos.faults import DO
from headrace.chaos.judge import Expectation, Verdict, judge
from headrace.chaos.judging import Moment
from headrace.chaos.life import Died, Life
from headrace.chaos.mutations import MUTATIONS
from headrace.chaos.outcome import Outcome, Record
from headrace.chaos.page import page
from headrace.chaos.plan import CHANGES_MAX, FILES_FIRST, KINDS, OFTEN, SELDOM, batches_of, plan, possible_kinds
from headrace.chaos.recorder import LOG, Recorded, delivery_times, write_rows
from headrace.chaos.report import Report, line, summary
from headrace.chaos.rig import Setup
from headrace.chaos.sources import Parts
from headrace.cli import app
from headrace.errors import QueryError, SourceError
from headrace.report.page import render
from headrace.runtime.failpoints import DRIVER_POINTS

ALL = possible_kinds(3)


def test_a_seed_gives_the_same_faults_always_and_another_seed_gives_others() -> None:
    assert plan(7, 40, ALL) == plan(7, 40, ALL)
    assert plan(7, 40, ALL) != plan(8, 40, ALL)


def test_a_longer_campaign_begins_with_the_shorter_one() -> None:
    assert plan(7, 90, ALL)[:40] == plan(7, 40, ALL)


def test_every_kind_comes_before_the_deck_is_shuffled_again() -> None:
    dealt = Counter(fault.kind for fault in plan(3, 22, ALL))
    assert set(dealt) == set(KINDS) == set(DO)
    assert {kind for kind, times in dealt.items() if times == 1} == set(SELDOM)
    assert {kind for kind, times in dealt.items() if times == 3} == set(OFTEN)


def test_choices_are_within_their_bounds() -> None:
    for fault in plan(1, 300, ALL):
        assert 1 <= fault.files <= 2
        assert 0 <= fault.victim < 1
        assert 0 <= fault.delay_s <= 1.5
        assert fault.point in DRIVER_POINTS
        assert len(fault.changes) <= CHANGES_MAX
        assert fault.kind != "change-routing" or fault.changes
    faults = plan(1, 10, ALL)
    assert batches_of(faults) == FILES_FIRST + sum(fault.files + 1 for fault in faults)
    faults = plan(1, 201, ALL)
    assert batches_of(faults) == 3 * FILES_FIRST + sum(fault.files + 1 for fault in faults), "two new checkpoints on the way"


def test_kinds_that_a_master_does_not_allow_are_left_out_or_refused() -> None:
    assert "kill-two-executors" not in possible_kinds(2)
    assert possible_kinds(2, ["kill-driver", "kill-executor"]) == ("kill-executor", "kill-driver")
    with pytest.raises(QueryError, match="local-cluster"):
        possible_kinds(0, ["kill-executor"])
    with pytest.raises(QueryError, match="one of"):
        possible_kinds(3, ["earthquake"])


@pytest.mark.parametrize(
    ("master", "executors"), [("local[2]", 0), ("local", 0), ("local-cluster[3,1,1024]", 3), ("spark://127.0.0.1:7077", 4)]
)
def test_executors_by_master(master: str, executors: int) -> None:
    assert Setup({}, master, {"spark.executor.instances": "4"}, {}, {}, {}).executors == executors


WANTED = [("ada", 90), ("bob", 10), ("bob", 10), ("cy", 5)]


@pytest.mark.parametrize(
    ("found", "expectation", "counted", "wrong"),
    [
        (WANTED, "equal", 0, (0, 0, 0)),
        (WANTED[1:], "equal", 0, (1, 0, 0)),
        ([*WANTED, ("cy", 5)], "equal", 0, (0, 1, 0)),
        ([("ada", 60), *WANTED[1:]], "equal", 0, (0, 0, 1)),
        ([*WANTED, ("dan", 1)], "equal", 0, (0, 0, 1)),
        # At least once: repeated rows are allowed; lost and invented ones are not.
        ([*WANTED, *WANTED], "at-least-once", 0, (0, 0, 0)),
        (WANTED[:2], "at-least-once", 0, (2, 0, 0)),
        ([*WANTED, ("dan", 1)], "at-least-once", 0, (0, 0, 1)),
        # A counted gap: no more may differ than was counted, and nothing is doubled or invented.
        (WANTED[1:], "counted-gap", 0, (1, 0, 0)),
        (WANTED[1:], "counted-gap", 1, (0, 0, 0)),
        ([("ada", 60), *WANTED[1:3]], "counted-gap", 1, (1, 0, 1)),
        ([("ada", 60), *WANTED[1:3]], "counted-gap", 2, (0, 0, 0)),
        ([*WANTED, ("cy", 5)], "counted-gap", 9, (0, 1, 0)),
        ([*WANTED, ("dan", 1)], "counted-gap", 9, (0, 0, 1)),
    ],
)
def test_the_judge(found: list[tuple[str, int]], expectation: str, counted: int, wrong: tuple[int, int, int]) -> None:
    verdict = judge(found, WANTED, Expectation(expectation), counted=counted, what="totals", columns=["src", "n"], keys=[0])
    assert (verdict.lost, verdict.doubled, verdict.wrong) == wrong
    assert verdict.right == (wrong == (0, 0, 0))
    assert bool(verdict.examples) == (not verdict.right)


def test_verdicts_add_up() -> None:
    assert (Verdict(3, lost=1) + Verdict(4, doubled=2)) == Verdict(7, lost=1, doubled=2)


def deliver(folder: Path, version: int, number: int, **columns: list[object]) -> None:
    write_rows(folder / f"{version:06d}-{number}.arrow", pa.table(columns))


def recorded(folder: Path, mode: str) -> Recorded:
    return Recorded("totals", mode, ("k", "n"), (0,), folder)


def test_the_last_delivery_of_a_version_counts_and_must_equal_the_first(tmp_path: Path) -> None:
    deliver(tmp_path, 0, 0, k=["ada", "bob"], n=[1, 1])
    deliver(tmp_path, 1, 0, k=["ada"], n=[2])
    deliver(tmp_path, 1, 1, k=["ada"], n=[2])
    sink = recorded(tmp_path, "update")
    assert sorted(sink.rows()) == [("ada", 2), ("bob", 1)]
    assert sink.verdict([("ada", 2), ("bob", 1)], Expectation.EQUAL).right
    deliver(tmp_path, 1, 2, k=["ada"], n=[3])
    assert sink.verdict([("ada", 3), ("bob", 1)], Expectation.EQUAL).wrong == 1


def test_what_is_delivered_after_a_moment_does_not_count(tmp_path: Path) -> None:
    deliver(tmp_path, 0, 0, k=["ada"], n=[1])
    moment_s = time.time()
    time.sleep(0.02)
    deliver(tmp_path, 0, 1, k=["ada"], n=[5])
    deliver(tmp_path, 1, 0, k=["ada"], n=[2])
    assert replace(recorded(tmp_path, "update"), until_s=moment_s).rows() == [("ada", 1)]
    assert recorded(tmp_path, "update").rows() == [("ada", 2)]


def test_at_least_once_looks_at_every_delivery(tmp_path: Path) -> None:
    deliver(tmp_path, 0, 0, k=["ada"], n=[1])
    deliver(tmp_path, 0, 1, k=["ada"], n=[1])
    sink = recorded(tmp_path, "append")
    assert sink.rows() == [("ada", 1)]
    assert sink.rows(every=True) == [("ada", 1), ("ada", 1)]
    assert sink.verdict([("ada", 1)], Expectation.AT_LEAST_ONCE).forgiven == 1


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_row_that_is_dropped_or_doubled_on_purpose_is_found(tmp_path: Path, mode: str, mutation: str) -> None:
    deliver(tmp_path, 0, 0, k=["ada", "bob"], n=[1, 1])
    time.sleep(0.01)
    deliver(tmp_path, 1, 0, k=["ada", "cy"], n=[2, 1])
    wanted = [("ada", 1), ("bob", 1), ("ada", 2), ("cy", 1)][mode == "update" :]
    sink = recorded(tmp_path, mode)
    assert sink.verdict(wanted, Expectation.EQUAL).right
    MUTATIONS[mutation](tmp_path)
    assert not sink.verdict(wanted, Expectation.EQUAL).right


def test_half_a_line_of_a_killed_driver_is_ignored(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text('{"at_s": 1.5, "version": 3, "sink": "totals"}\n{"at_s": 2')
    assert delivery_times(tmp_path) == [(1.5, 3, "totals")]


def test_input_is_cut_into_equal_parts_and_too_few_rows_are_refused(tmp_path: Path) -> None:
    parts = Parts.of(tmp_path, 0)
    with pytest.raises(SourceError, match="at least 5 rows"):
        parts.write(pa.table({"k": range(4)}), 5, 10)
    parts.write(pa.table({"k": range(40)}), 4, 6)
    assert parts.count == 4
    assert pq.read_table(parts.between(1, 9)[0])["k"].to_pylist() == [6, 7, 8, 9, 10, 11]
    parts.release(1)
    assert [path.name for path in parts.released.iterdir()] == [Parts.name(1)]


def judged(tmp_path: Path, verdicts: dict[int, Verdict]) -> tuple[list[Record], int]:
    """The records of five faults whose results are compared with these verdicts, and how often a new checkpoint was begun."""
    told: list[Record] = []
    campaign = Campaign(7, plan(7, 5, ("kill-driver",)), Setup({}, "local[2]", {}, {}, {}, {}), Rules(), tmp_path, told.append)
    anew: list[int] = []
    parts = cast(Any, campaign)
    parts._begin_anew = lambda: anew.append(len(told))
    parts.rig.recorded = list

    def begin(moment: Moment, _: Any) -> Future[Verdict]:
        found: Future[Verdict] = Future()
        found.set_result(verdicts.get(moment.fed, Verdict(10)))
        return found

    parts.judging = SimpleNamespace(begin=begin)
    parts._fault = lambda fault: (
        Record(7, fault.number, fault.kind, "", Outcome.SURVIVED, "", 1.0, 3, recovery_s=2.0),
        Moment(0, fault.number, 0, 0.0, 0),
    )
    for fault in campaign.faults:
        campaign._run(fault)
    campaign._add_pending()
    assert told == campaign.records
    assert [record.number for record in told] == [0, 1, 2, 3, 4]
    return told, len(anew)


def test_results_are_compared_beside_the_next_fault_and_told_in_order(tmp_path: Path) -> None:
    told, anew = judged(tmp_path, {})
    assert ([record.outcome for record in told], anew) == ([Outcome.SURVIVED] * 5, 0)


def test_a_difference_belongs_to_its_own_fault_and_the_one_that_has_begun_meanwhile_does_not_count(tmp_path: Path) -> None:
    told, anew = judged(tmp_path, {1: Verdict(10, lost=2, wrong=1)})
    assert [record.outcome for record in told] == [Outcome.SURVIVED, Outcome.WRONG, Outcome.SKIPPED, Outcome.SURVIVED, Outcome.SURVIVED]
    assert (told[1].lost, told[1].wrong, told[1].recovery_s) == (2, 1, None)
    assert "the fault before" in told[2].detail
    assert anew == 1


def test_a_difference_after_the_last_fault_is_found(tmp_path: Path) -> None:
    told, _ = judged(tmp_path, {4: Verdict(10, doubled=1)})
    assert told[-1].outcome is Outcome.WRONG


def test_a_program_that_ends_is_noticed(tmp_path: Path) -> None:
    life = Life(["sh", "-c", "echo '{\"result\": 7}'"], tmp_path / "log", {"PATH": "/usr/bin:/bin"})
    assert life.answer() == 7
    with pytest.raises(Died, match="gone"):
        life.answer()
    life.kill()


def records() -> list[Record]:
    what = "executor 2, 0.41 s after 2 file(s), aggregate 3 -> 1, slots moved, and more that does not fit the terminal"
    good = [Record(7, at, kind, what, Outcome.SURVIVED, "", 4.0, at, at_s=at * 9.0, recovery_s=2.5) for at, kind in enumerate(KINDS)]
    return [*good, Record(7, 11, "store-away", "for 3 s", Outcome.WRONG, "1 lost", 4.0, 12, at_s=99.0, lost=1)]


def test_lines_and_the_table_fit_eighty_columns_and_the_log_has_everything(tmp_path: Path) -> None:
    said = StringIO()
    report = Report(tmp_path, Console(file=said, width=80), {"about": {"seed": 7}})
    for record in records():
        report.add_briefly(record)
    report.table(summary(report.records))
    failures = [text for text in said.getvalue().splitlines() if "WRONG" in text]
    assert failures
    assert max(len(text) for text in said.getvalue().splitlines() if text not in failures) <= 80
    assert "slots moved, and more" in (tmp_path / "log.txt").read_text()
    assert json.loads((tmp_path / "faults.json").read_text())["faults"][-1]["lost"] == 1
    assert line(records()[0]).startswith("   1 kill-executor")
    report.close()


def test_the_page_has_the_timeline_the_faults_and_the_failures() -> None:
    batches = [{"noted_s": 100.0 + at, "batch_s": 0.5, "rebuilt": 0, "missing": 0} for at in range(5)]
    made = page(records(), {"seed": 7, "query": "q.py", "master": "local"}, batches, 100.0)
    assert not made.good
    text = render(made)
    assert "1 FAILED: 1 rows lost" in text
    assert text.count("<svg") == 4
    assert "for 3 s" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "a Python file"),
        (["module"], "MODULE:FUNCTION"),
        (["module:query"], "--input FOLDER"),
        (["q.py", "--expect", "luck"], "equal, at-least-once, counted-gap"),
        (["q.py", "--option", "headrace.replicas"], "NAME=VALUE"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["chaos", *arguments, "--master", "local[2]", "--out", str(tmp_path / "out")])
    assert done.exit_code != 0
    assert message in str(done.exception)
