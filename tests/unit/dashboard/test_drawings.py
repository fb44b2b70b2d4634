"""A drawing of boxes and arrows becomes an SQL or a PySpark text, and what is wrong with it is said box by box."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest

from headrace.dashboard.editor.drawing import Drawing, expressions
from headrace.dashboard.editor.texts import PYSPARK, SQL, Text, text_of
from headrace.errors import QueryError

EVIL = "');\nimport os\n#"


def box(id: str, kind: str, name: str = "", /, **settings: str) -> dict[str, Any]:
    return {"id": id, "kind": kind, "name": name or id, "settings": settings}


def wire(source: str, target: str, branch: str = "", port: int = 0) -> dict[str, Any]:
    return {"source": source, "target": target, "branch": branch, "port": port}


def drawing(boxes: list[dict[str, Any]], *wires: dict[str, Any]) -> Drawing:
    return Drawing.read({"boxes": boxes, "wires": list(wires)})


CALLS = box("calls", "source", stream="calls")


def chain(*boxes: dict[str, Any]) -> Drawing:
    """A source, these boxes one behind the other, and a sink."""
    every = [CALLS, *boxes, box("out", "sink")]
    return drawing(every, *(wire(one["id"], two["id"]) for one, two in itertools.pairwise(every)))


def messages(found: Text) -> dict[str, str]:
    return {each.box: each.message for each in found.problems}


def test_a_chain_becomes_a_with_clause() -> None:
    totals = box("totals", "aggregate", keys="src", functions="sum(seconds) AS total", window="tumbling", time="ts", size="5 minutes")
    text = text_of(chain(box("long", "filter", condition="seconds > 30"), totals), SQL)
    assert text.text == (
        "WITH long AS (\n  SELECT * FROM calls\n  WHERE seconds > 30\n), totals AS (\n  SELECT\n    window(ts, '5 minutes') AS window,\n"
        "    src,\n    sum(seconds) AS total\n  FROM long\n  GROUP BY\n    window(ts, '5 minutes'),\n    src\n)\nSELECT * FROM totals"
    )
    assert text.boxes == ("long",) * 3 + ("totals",) * 9 + ("", "out")
    assert (text.problems, text.outputs) == ((), ("out",))


def test_a_chain_becomes_variables() -> None:
    session = {"window": "session", "time": "ts", "size": "1 minute"}
    totals = box("totals", "aggregate", keys="src, upper(dst) AS d", functions="count(*) AS n", **session)
    text = text_of(chain(box("long", "filter", condition='src = "a\\b"'), totals), PYSPARK)
    assert text.text == (
        'long = calls.filter("src = \\"a\\\\b\\"")\n'
        'totals = long.groupBy(F.session_window("ts", "1 minute"), "src", F.expr("upper(dst) AS d")).agg(F.expr("count(*) AS n"))\n'
        "result = totals"
    )


def test_a_watermark_is_part_of_a_source() -> None:
    late = box("late", "source", stream="my calls", time="ts", delay="10 minutes")
    drawn = drawing([late, box("out", "sink")], wire("late", "out"))
    assert text_of(drawn, PYSPARK).text.split("\n")[0] == 'late = spark.table("`my calls`").withWatermark("ts", "10 minutes")'
    assert "SELECT * FROM `my calls`\n  WATERMARK ts DELAY OF INTERVAL 10 MINUTES" in text_of(drawn, SQL).text


def test_a_row_takes_the_first_branch_of_a_split() -> None:
    parts = box("parts", "split", branches="big: x > 5\nsmall: x < 2")
    boxes = [CALLS, parts, box("one", "sink"), box("two", "sink"), box("rest", "sink")]
    wires = [wire("parts", to, by) for to, by in (("one", "small"), ("two", "big"), ("rest", "else"))]
    drawn = drawing(boxes, wire("calls", "parts"), *wires)
    text = text_of(drawn, PYSPARK)
    assert 'parts_small = calls.filter("NOT coalesce(x > 5, false) AND coalesce(x < 2, false)")' in text.text
    assert 'parts_else = calls.filter("NOT coalesce(x > 5, false) AND NOT coalesce(x < 2, false)")' in text.text
    assert text.text.endswith('result = {\n    "one": parts_small,\n    "two": parts_big,\n    "rest": parts_else,\n}')
    assert text.outputs == ("one", "two", "rest")
    # An SQL text has one result.
    assert {name: "one result" in message for name, message in messages(text_of(drawn, SQL)).items()} == {"two": True, "rest": True}


def test_joins_and_unions_have_their_inputs_in_order() -> None:
    other = box("other", "source", stream="other")
    joined = box("both", "join", kind="left", condition="l.id = r.id", columns="l.*, r.price AS price")
    wires = [wire("other", "both", port=0), wire("calls", "both", port=1), wire("both", "out")]
    drawn = drawing([CALLS, other, joined, box("out", "sink")], *wires)
    assert "SELECT l.*, r.price AS price\n  FROM other AS l LEFT JOIN calls AS r\n  ON l.id = r.id" in text_of(drawn, SQL).text
    wanted = 'both = other.alias("l").join(calls.alias("r"), F.expr("l.id = r.id"), "left").selectExpr("l.*", "r.price AS price")'
    assert wanted in text_of(drawn, PYSPARK).text
    wires = [wire("calls", "u", port=1), wire("other", "u"), wire("u", "out")]
    together = drawing([CALLS, other, box("u", "union"), box("out", "sink")], *wires)
    assert "u = other.unionAll(calls)" in text_of(together, PYSPARK).text
    assert "SELECT * FROM other\n  UNION ALL\n  SELECT * FROM calls" in text_of(together, SQL).text


def test_what_an_author_writes_stays_a_text_in_python() -> None:
    drawn = chain(box("long", "filter", condition=EVIL), box("few", "select", columns=EVIL))
    tree = ast.parse(text_of(drawn, PYSPARK).text)
    assert [type(each).__name__ for each in tree.body] == ["Assign", "Assign", "Assign"]
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert EVIL.strip() in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (box("b", "filter"), "give a condition"),
        (box("b", "filter", "1st", condition="x"), "letters, digits"),
        (box("b", "filter", "result", condition="x"), "letters, digits"),
        (box("b", "filter", "import", condition="x"), "letters, digits"),
        (box("b", "filter", "calls", condition="x"), "is that of a stream"),
        (box("b", "filter", "long", condition="x"), "taken by another box"),
        (box("b", "select", columns=" , "), "give columns"),
        (box("b", "aggregate", keys="src"), "give functions"),
        (box("b", "aggregate", functions="count(*)", window="sliding", time="ts", size="1 minute"), "needs an advance"),
        (box("b", "aggregate", functions="count(*)", window="tumbling", size="1 minute"), "needs a time column"),
        (box("b", "aggregate", functions="count(*)", window="circle"), "its window must be"),
        (box("b", "split", branches="big x > 5"), "a condition behind a colon"),
        (box("b", "split", branches="else: x > 5"), "a condition behind a colon"),
        (box("b", "join", keys="id"), "two inputs, and has 1"),
        (box("b", "union"), "two or more inputs, and has 1"),
    ],
)
def test_a_box_says_what_it_lacks_and_the_rest_has_a_text(wrong: dict[str, Any], message: str) -> None:
    text = text_of(chain(box("long", "filter", condition="seconds > 30"), wrong), PYSPARK)
    assert message in messages(text)[wrong["id"]]
    assert text.text.startswith('long = calls.filter("seconds > 30")')
    assert text.outputs == ()


def test_boxes_in_a_circle_say_so() -> None:
    boxes = [CALLS, box("a", "union"), box("b", "filter", condition="x"), box("out", "sink")]
    drawn = drawing(boxes, wire("calls", "a"), wire("b", "a", port=1), wire("a", "b"), wire("b", "out"))
    assert {name for name, message in messages(text_of(drawn, SQL)).items() if "circle" in message} == {"a", "b", "out"}


def test_a_name_that_hides_a_stream_from_another_source_is_refused() -> None:
    boxes = [
        box("one", "source", "calls", stream="calls", time="ts", delay="1 minute"),
        box("two", "source", "again", stream="calls"),
        box("u", "union"),
        box("out", "sink"),
    ]
    drawn = drawing(boxes, wire("one", "u"), wire("two", "u", port=1), wire("u", "out"))
    assert "is that of a stream" in messages(text_of(drawn, PYSPARK))["one"]


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"boxes": [{"id": "1"}], "wires": []},
        {"boxes": [box("a", "source"), box("a", "sink")], "wires": []},
        {"boxes": [box("a", "teapot")], "wires": []},
        {"boxes": [box("a", "source")], "wires": [wire("a", "b")]},
        {"boxes": [box("a", "filter", condition="x" * 10_001)], "wires": []},
        {"boxes": [box(str(at), "sink") for at in range(201)], "wires": []},
    ],
)
def test_what_is_no_drawing_is_refused(data: Any) -> None:
    with pytest.raises(QueryError, match="drawing"):
        Drawing.read(data)


def test_lists_are_divided_outside_of_brackets_and_quotes() -> None:
    assert expressions("a, f(b, c)[1, 2], 'x, y', `p,q`\nz") == ["a", "f(b, c)[1, 2]", "'x, y'", "`p,q`", "z"]
