"""The backlog, computed from offsets in the form of Spark's sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.runtime.offsets import OffsetBacklog
from headrace.spark.streaming import SourceOffsets

KAFKA = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"


def source(kind: str, start: Any, end: Any, latest: Any) -> SourceOffsets:
    return SourceOffsets(kind, kind == KAFKA, *(None if each is None else json.dumps(each) for each in (start, end, latest)))


@pytest.mark.parametrize(
    ("end", "latest", "left"),
    [
        ({"calls": {"0": 90, "1": 40}}, {"calls": {"0": 100, "1": 45}}, 15),
        ({"calls": {"0": 90}, "bills": {"2": 7}}, {"calls": {"0": 90}, "bills": {"2": 9}}, 2),
        ({"calls": {"0": 100}}, {"calls": {"0": 100}}, 0),
        # A partition that has just appeared, one that is gone, and one of a topic that was made anew.
        ({"calls": {"0": 90}}, {"calls": {"0": 95, "1": 1000}}, 5),
        ({"calls": {"0": 90, "1": 5}}, {"calls": {"0": 95}}, 5),
        ({"calls": {"0": 90, "1": 5}}, {"calls": {"0": 3, "1": 6}}, 1),
        ({"calls": {"0": 90}}, None, None),
        (None, {"calls": {"0": 90}}, None),
    ],
)
def test_kafka_s_offsets_count_rows(end: Any, latest: Any, left: int | None) -> None:
    assert OffsetBacklog().left([source(KAFKA, None, end, latest)], 10) == left


def test_several_topics_of_several_sources_add_up() -> None:
    sources = [source(KAFKA, None, {"a": {"0": at}}, {"a": {"0": 100}}) for at in (90, 95)]
    assert OffsetBacklog().left(sources, 10) == 15
    assert OffsetBacklog().left([*sources, source("Other", 1, 2, 3)], 10) == 15


def test_rows_of_an_unknown_unit_are_learned_from_batches() -> None:
    backlog = OffsetBacklog()
    assert backlog.left([source("Other", {"page": 0}, {"page": 2}, {"page": 10})], 50) == 200
    assert backlog.left([source("Other", {"page": 2}, {"page": 4}, {"page": 10})], 100) == 225
    assert backlog.left([source("Other", {"page": 8}, {"page": 10}, {"page": 10})], 75) == 0


@pytest.mark.parametrize("offset", ["text", {"at": "2026"}, {"at": True}, [1, 2], {"at": 1.5}])
def test_offsets_that_are_no_numbers_tell_nothing_unless_they_are_equal(offset: Any) -> None:
    assert OffsetBacklog().left([source("Other", None, offset, offset)], 10) == 0
    assert OffsetBacklog().left([source("Other", None, {"at": 1}, offset)], 10) is None


def test_an_offset_that_goes_back_tells_nothing() -> None:
    assert OffsetBacklog().left([source("Other", {"at": 0}, {"at": 9}, {"at": 3})], 10) is None
    assert OffsetBacklog().left([], 10) is None


def test_a_source_whose_offsets_count_something_else_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="headrace")
    backlog = OffsetBacklog()
    for _ in range(2):
        backlog.left([source("Other", {"page": 0}, {"page": 2}, {"page": 10})], 50)
        backlog.left([source(KAFKA, None, {"calls": {"0": 90}}, {"calls": {"0": 90}})], 10)
    assert [record.message for record in caplog.records] == [
        "offsets of Other do not count rows, so the number of rows that a batch leaves behind is estimated from earlier batches"
    ]
    assert OffsetBacklog().left([source("Text", None, "a", "b")], 10) is None
    assert caplog.messages[-1].endswith("is not known")
