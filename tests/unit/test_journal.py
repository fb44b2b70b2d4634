"""The journal: records come back as they were written, and no damage goes unnoticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError
from headrace.ids import OperatorId, StoreId, Version, WriterId
from headrace.runtime.safety.chain import check_chain, check_journal, links, since_needed
from headrace.state.durable import FolderStore
from headrace.state.journal import Journal, Record, check_same, from_bytes, record_of, to_bytes
from headrace.state.manifest import Manifest, ManifestStore, StagedFile, StoreState
from headrace.state.routing import Routing

SUM = OperatorId("sum")


def manifest(version: int, previous_crc: int | None = None) -> Manifest:
    staged = (StagedFile("out.arrow", "staged", 10, 1, 1, SUM),)
    return Manifest(
        Version(version),
        WriterId("1x00000000"),
        {StoreId(SUM): StoreState()},
        staged,
        watermark_ms=7,
        watermark_nodes_ms=(7, None),
        routing={SUM: Routing.even(2)},
        offsets=('{"logOffset":3}', None),
        previous_crc=previous_crc,
    )


def record(version: int, previous_crc: int | None = None) -> Record:
    return record_of(manifest(version, previous_crc), now_ms=1_700_000_000_123, rows={SUM: 5})


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(FolderStore(tmp_path))


def test_a_record_comes_back_without_state_and_output(journal: Journal) -> None:
    written = journal.write(record(3), sync=True)
    assert journal.versions() == [3]
    found = journal.read(Version(3))
    assert found == written
    assert found is not None
    assert found.facts.crc == written.facts.crc is not None
    assert (found.facts.stores, found.facts.staged, found.facts.watermark_ms, found.rows) == ({}, (), 7, {SUM: 5})
    assert journal.read(Version(4)) is None


def test_a_version_has_one_record(journal: Journal) -> None:
    journal.write(record(3), sync=False)
    with pytest.raises(CheckpointError, match="the only query"):
        journal.write(record(3), sync=False)
    assert [path.name for path in journal.path(Version(3)).parent.iterdir()] == ["000000000003.json"]


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    good = to_bytes(record(3))
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:at] + bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))]) + good[at + 1 :]
    try:
        found = from_bytes(damaged, "here", Version(3))
    except CheckpointError:
        return
    # White space outside of what the checksum covers changes nothing.
    assert found == from_bytes(good, "here", Version(3))


def test_trimming_keeps_what_is_needed(journal: Journal) -> None:
    for version in range(5):
        journal.write(record(version), sync=False)
    journal.trim(before=Version(3))
    assert journal.versions() == [3, 4]


def test_a_replay_that_reads_other_rows_is_refused() -> None:
    check_same(record(3), record(3), "here")
    with pytest.raises(CheckpointMismatchError, match="reads the same rows again"):
        check_same(record(3), replace(record(3), rows={SUM: 6}), "here")


def test_records_of_several_runs_are_told_apart(journal: Journal, tmp_path: Path) -> None:
    manifests = ManifestStore(FolderStore(tmp_path))
    first = journal.write(record(0), sync=False)
    second = journal.write(record(1, first.facts.crc), sync=False)
    journal.write(record(2, second.facts.crc), sync=False)
    check_chain(links(manifests, journal))
    journal.path(Version(2)).unlink()
    journal.write(record(2, 12345), sync=False)
    with pytest.raises(CorruptStateError, match="written on top of another"):
        check_chain(links(manifests, journal))


def test_gaps_in_the_journal_are_refused(tmp_path: Path) -> None:
    check_journal(str(tmp_path), [], [])
    check_journal(str(tmp_path), [Version(3)], [Version(3), Version(4), Version(5)])
    check_journal(str(tmp_path), [Version(9)], [Version(3)])
    with pytest.raises(CheckpointMismatchError, match="none of version 5"):
        check_journal(str(tmp_path), [Version(3)], [Version(4), Version(6)])
    with pytest.raises(CheckpointMismatchError, match="none of version 0"):
        check_journal(str(tmp_path), [], [Version(1)])


def test_what_came_before_the_first_batch_that_matters_may_be_gone(tmp_path: Path) -> None:
    journaled = [Version(each) for each in (6, 7, 8, 9)]
    check_journal(str(tmp_path), [], journaled, since=Version(7))
    check_journal(str(tmp_path), [Version(2)], journaled, since=Version(7))
    check_journal(str(tmp_path), [], [Version(9)], since=Version(10))
    with pytest.raises(CheckpointMismatchError, match="none of version 5"):
        check_journal(str(tmp_path), [], journaled, since=Version(6))
    with pytest.raises(CheckpointMismatchError, match="none of version 7"):
        check_journal(str(tmp_path), [], [Version(6), Version(8), Version(9)], since=Version(7))


def test_a_restart_needs_what_the_last_version_depends_on_that_spark_has_committed(tmp_path: Path) -> None:
    journal = Journal(FolderStore(tmp_path))
    assert since_needed(journal, None) == 0
    for version, since in ((4, 2), (5, 5)):
        journal.write(record_of(manifest(version, None), 0, {}, Version(since)), sync=False)
    assert since_needed(journal, committed=5) == 5
    assert since_needed(journal, committed=4) == 2, "Spark runs batch 5 again, on version 4"
    again = journal.read(Version(4))
    assert again is not None
    assert again.since == 2


def test_only_operators_that_read_sources_alone_are_compared_if_state_began_empty() -> None:
    before, again = (record_of(manifest(1, None), 0, {SUM: 5, OperatorId("join"): rows}) for rows in (9, 7))
    check_same(before, again, "journal", [SUM])
    with pytest.raises(CheckpointMismatchError, match="the same rows again"):
        check_same(before, again, "journal")
