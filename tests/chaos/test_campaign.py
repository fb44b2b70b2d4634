"""A small campaign, and the proof that it can fail. ``make chaos`` runs a long one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from headrace.chaos.life import Refused, answer
from headrace.chaos.outcome import Outcome, Record
from headrace.chaos.report import Report
from tests.chaos import oracle
from tests.chaos.campaign import Seed
from tests.chaos.data import Row, check, files_of
from tests.chaos.faults import FAULTS, deck
from tests.chaos.mutations import MUTATIONS
from tests.chaos.program import Program
from tests.chaos.reference import Reference, compute
from tests.chaos.rig import Rig

FILES = 12


class Here:
    """The program in the tests' own process, whose Spark has started already."""

    def __init__(self, spark: SparkSession) -> None:
        self.program = Program(spark)
        self.ended = False

    def ask(self, do: str, **arguments: Any) -> Any:
        said = answer(self.program, json.dumps({"do": do, **arguments}))
        if "error" in said:
            raise Refused(said["kind"], said["error"], said["ours"])
        return said["result"]

    def kill(self) -> None:
        if self.program.query is not None:
            self.program.query.stop()


@pytest.fixture(scope="module", params=["windows", "sessions"])
def settled(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Reference]:
    """A stopped query that has processed all its files, and the results it must have."""
    work = tmp_path_factory.mktemp("settled")
    rig = Rig(work, files_of(7, FILES), Random(7), query=request.param, life=Here(spark))
    rig.feed(FILES)
    rig.settle()
    rig.stop()
    return rig, compute(spark.newSession(), rig.files, work / "all", rig.query)


def differences(rig: Rig, reference: Reference) -> list[str]:
    return oracle.differences(reference, rig.query, rig.fed, rig.output, rig.checkpoint)


@pytest.mark.extra
@pytest.mark.spark
@pytest.mark.slow
def test_an_undisturbed_query_equals_sparks_batch_answer(settled: tuple[Rig, Reference]) -> None:
    rig, reference = settled
    assert differences(rig, reference) == []
    for sink in rig.order:
        assert reference.output(sink, FILES), f"nothing is expected of {sink}: the comparison says nothing"
    assert any(row.late for rows in rig.files for row in rows)


@pytest.mark.extra
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_that_no_engine_can_notice_is_found(settled: tuple[Rig, Reference], mutation: str, tmp_path: Path) -> None:
    rig, reference = settled
    before = {path: path.read_bytes() for path in rig.folder.rglob("*") if path.is_file()}
    try:
        MUTATIONS[mutation](rig)
        assert differences(rig, reference)
    finally:
        for path in rig.folder.rglob("*"):
            if path.is_file() and path not in before:
                path.unlink()
        for path, data in before.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)
    assert differences(rig, reference) == []


@pytest.mark.extra
@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_campaign(spark: SparkSession, tmp_path: Path) -> None:
    """A driver is killed at a random moment, a batch breaks off, and a file is damaged."""
    kinds = ("kill driver", "batch breaks off", "corrupt manifest")
    records: list[Record] = []
    Seed(1, len(kinds), spark.newSession(), tmp_path / "work", records.append, kinds=kinds).run()
    assert [record.kind for record in records] == list(kinds)
    assert not [record for record in records if record.outcome.fails]


def test_every_kind_of_fault_is_in_a_campaign_of_twenty_seeds_and_always_the_same_ones() -> None:
    dealt = Counter(kind for seed in range(20) for kind in deck(seed, 10))
    assert dealt.total() == 200
    assert set(dealt) == set(FAULTS)
    assert min(dealt.values()) >= 5
    assert deck(3, 10) == deck(3, 10) != deck(4, 10)


@pytest.mark.parametrize("late", [True, False])
def test_rows_that_some_batching_would_judge_otherwise_are_not_accepted(late: bool) -> None:
    files = files_of(1, FILES)
    oldest = max(row.ts for row in files[4])
    ts = oldest - 1 if late else oldest - 11_000_000
    with pytest.raises(AssertionError):
        check([*files[:5], [Row(1, 5, "ada", "l", ts, 1, None, late)]])


def test_a_loss_makes_the_campaign_fail(tmp_path: Path) -> None:
    report = Report(tmp_path, Console(quiet=True))
    for at, outcome in enumerate((Outcome.SURVIVED, Outcome.REFUSED, Outcome.WRONG)):
        report.add(Record(1, at, "kill driver", "at once", outcome, "", 0.1, 3))
    assert not report.finish()
    assert [each["outcome"] for each in json.loads((tmp_path / "faults.json").read_text())["faults"]] == ["survived", "refused", "WRONG"]
    assert "1 FAILED" in (tmp_path / "log.txt").read_text()
