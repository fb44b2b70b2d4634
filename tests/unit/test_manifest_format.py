"""The text of a manifest: checkpoints of format 5 stay readable, byte for byte, whatever the fields are called in the code."""

from __future__ import annotations

from headrace.ids import FencingToken, OperatorId, RunSeq, StoreId, Version, WriterId
from headrace.state.manifest import Counters, Manifest, SourceEntries, StagedFile, StoreState, from_bytes, to_bytes
from headrace.state.routing import Routing
from headrace.state.run import RunRef

JOIN = OperatorId("join")
FILE = "v000000000007-join-i0-e3x1a2b3c4d-a9-run-left.arrow"
TEXT = b"""{"format":5,"crc":1236219483,"body":
{"version":7,"epoch":"3x1a2b3c4d","operators":{"join.left":{"closed_ms":5,"runs":[{"file":"v000000000007-join-i0-e3x1a2b3c4d-a9-run-left.arrow",\
"bytes":100,"crc":7,"rows":4,"seq":21,"lo":0,"hi":2048,"sub_min":5,"sub_max":9,"generation":0,"sub_from":null}]},\
"join.a.b":{"closed_ms":0,"runs":[]}},\
"staged":[{"file":"out.arrow","folder":"staged","bytes":10,"crc":3,"rows":2,"operator":"join"}],\
"watermark_ms":5,"watermark_nodes_ms":[null,5],"watermark_idle":[0],\
"routing":{"join":{"epoch":0,"ranges":[[[0,2048]],[[2048,4096]]],"recreations":[],"spread":[]}},\
"offsets":["{}",null],"source_entries":[{"source":"0","first":0,"last":7,"crc":9}],"query_id":"id","token":3,"previous_crc":12,\
"checkpoint_version":7,"counters":{"keys.join":4,"rows":3,"rows_late":1}}
}"""
"""Written by the code before stores, writers and counters had types of their own."""


def manifest() -> Manifest:
    run = RunRef(FILE, bytes=100, crc=7, rows=4, seq=RunSeq(21), lo=0, hi=2048, sub_min=5, sub_max=9)
    return Manifest(
        Version(7),
        WriterId("3x1a2b3c4d"),
        {StoreId(JOIN, "left"): StoreState((run,), closed_ms=5), StoreId(JOIN, "a.b"): StoreState()},
        staged=(StagedFile("out.arrow", "staged", bytes=10, crc=3, rows=2, operator=JOIN),),
        watermark_ms=5,
        watermark_nodes_ms=(None, 5),
        watermark_idle=(0,),
        routing={JOIN: Routing.even(2)},
        offsets=("{}", None),
        source_entries=(SourceEntries("0", 0, 7, 9),),
        query_id="id",
        token=FencingToken(3),
        previous_crc=12,
        checkpoint_version=7,
        counters=Counters(rows=3, rows_late=1, keys={JOIN: 4}),
    )


def test_a_manifest_of_this_format_is_read() -> None:
    assert from_bytes(TEXT, "here") == manifest()


def test_a_manifest_is_written_as_before() -> None:
    assert to_bytes(manifest()) == TEXT


def test_a_store_with_a_dot_in_its_name_belongs_to_its_operator() -> None:
    found = from_bytes(TEXT, "here")
    assert {store.operator for store in found.stores} == {JOIN}
    assert [ref.file for ref in found.runs_of(JOIN)] == [FILE]
    assert found.whole(StoreId(JOIN, "a.b")) == ()
