"""Pictures of plans: everything is there, nothing overlaps, and the text stands where it should."""

from __future__ import annotations

import doctest
import re
import sys
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compile.layout import Rect, Spot, along, label_spots, spread_apart
from headrace.compile.picture import Arrow, Picture, Shape, layout, text_width, to_dot, to_svg
from headrace.errors import QueryError
from tests.examples import examples

SVG = "{http://www.w3.org/2000/svg}"

CHAIN = Picture(
    (
        Shape("s", "calls", ("parquet calls/*",), "source", "prefix"),
        Shape("m", "select", ("caller, ts", "end - start AS duration"), group="prefix"),
        Shape("a", "groupBy(caller)", ("window(ts, 1 hour, 10 minutes)", "avg(duration) AS mean"), "stateful", "mean calls"),
        Shape("f", "filter", ("mean > 600 AND n >= 3",), group="mean calls"),
        Shape("o", "parquet", ("out/heavy",), "sink"),
    ),
    (Arrow("s", "m"), Arrow("m", "a", "caller"), Arrow("a", "f"), Arrow("f", "o", "exactly once")),
)
SPLIT = Picture(
    (
        Shape("s", "kafka", ("topic orders",), "source"),
        Shape("f", "split", ("small, large, otherwise",)),
        *(Shape(f"o{i}", "delta", (f"out/{i}",), "sink") for i in range(3)),
    ),
    (Arrow("s", "f"), Arrow("f", "o0", "amount < 10"), Arrow("f", "o1", "amount > 10,000 and vip"), Arrow("f", "o2", "otherwise")),
)
JOIN = Picture(
    (
        Shape("l", "clicks", (), "source", "prefix"),
        Shape("r", "impressions", (), "source", "prefix"),
        Shape("w", "where", ("ad IS NOT NULL",), group="prefix"),
        Shape("j", "join", ("on ad", "within 60 seconds"), "stateful", "join"),
        Shape("a", "groupBy(ad)", (), "stateful", "totals"),
        Shape("o", "console", (), "sink", "totals"),
    ),
    (Arrow("l", "j", "left"), Arrow("r", "w"), Arrow("w", "j", "right"), Arrow("j", "a", "ad"), Arrow("a", "o")),
)
DIAMOND = Picture(
    (
        Shape("s", "stream", (), "source", "prefix"),
        Shape("x", "where", ("even(id)",), group="prefix"),
        Shape("A", "count per key", (), "stateful", "A"),
        Shape("B", "max per <region> & \"day\" 'x'", ("a long line " * 12, "数据流 表"), "stateful", "B <&>"),
        Shape("j", "join", (), "stateful", "J"),
    ),
    (
        Arrow("s", "x"),
        Arrow("x", "A", "key"),
        Arrow("x", "B", "a, <b>"),
        Arrow("A", "j", "left"),
        Arrow("B", "j", "right"),
        Arrow("s", "j", "late"),
    ),
)
PICTURES = pytest.mark.parametrize("picture", [CHAIN, SPLIT, JOIN, DIAMOND], ids=["chain", "split", "join", "diamond"])


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    ids = [f"n{i}" for i in range(draw(st.integers(1, 9)))]
    words = st.text(st.sampled_from("abcMW il.<&>\"'_流"), max_size=70)
    kinds = st.sampled_from(["source", "stateless", "stateful", "sink"])
    shapes = [
        Shape(each, draw(words), tuple(draw(st.lists(words, max_size=3))), draw(kinds), draw(st.sampled_from([None, "g", "h", "i"])))
        for each in ids
    ]
    ends = draw(st.lists(st.sampled_from(list(combinations(ids, 2))), unique=True, max_size=14)) if len(ids) > 1 else []
    arrows = [Arrow(source, target, draw(st.text(st.sampled_from("abc <&>"), max_size=50))) for source, target in ends]
    return Picture(tuple(draw(st.permutations(shapes))), tuple(arrows))


def inside(inner: Rect, outer: Rect) -> bool:
    right, bottom = inner.x + inner.width <= outer.x + outer.width + 0.01, inner.y + inner.height <= outer.y + outer.height + 0.01
    return inner.x >= outer.x - 0.01 and inner.y >= outer.y - 0.01 and right and bottom


def check_layout(picture: Picture) -> None:
    plan = layout(picture)
    page = Rect(0, 0, plan.width, plan.height)
    assert set(plan.shapes) == {shape.id for shape in picture.shapes}
    assert not any(a.overlaps(b) for a, b in combinations(plan.shapes.values(), 2))
    assert not any(a.overlaps(b) for a, b in combinations(plan.groups.values(), 2))
    assert all(inside(rect, page) for rect in [*plan.shapes.values(), *plan.groups.values()])
    for shape in picture.shapes:
        for name, group in plan.groups.items():
            rect = plan.shapes[shape.id]
            assert inside(rect, group) if name == shape.group else not rect.overlaps(group)
    assert {(route.source, route.target) for route in plan.routes} == {(arrow.source, arrow.target) for arrow in picture.arrows}
    for route in plan.routes:
        start, end = plan.shapes[route.source], plan.shapes[route.target]
        assert route.points[0] == pytest.approx((start.x + start.width, start.y + start.height / 2))
        assert route.points[-1] == pytest.approx((end.x, end.y + end.height / 2))
        assert all(a[0] <= b[0] + 0.01 for a, b in pairwise(route.points)), "an arrow never turns back"
        others = [rect for each, rect in plan.shapes.items() if each not in (route.source, route.target)]
        wire = [point for piece in pairwise(route.points) for point in along(*piece)]
        assert not any(rect.holds(point) for rect in others for point in wire)


def check_svg(picture: Picture) -> None:
    root = ElementTree.fromstring(to_svg(picture))
    shapes = {g.get("data-id"): g for g in root.iter(f"{SVG}g") if "shape" in (g.get("class") or "").split()}
    assert set(shapes) == {shape.id for shape in picture.shapes}
    for shape in picture.shapes:
        group = shapes[shape.id]
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        box = Rect(*(float(rect.get(name, "nan")) for name in ("x", "y", "width", "height")))
        assert f"shape {shape.kind}" == group.get("class")
        written = []
        for text in group.findall(f"{SVG}text"):
            css, px = text.get("class", ""), {"caption": 9.5, "title": 14, "line": 12}[text.get("class", "")]
            words = text.text or ""
            x, y = float(text.get("x", "nan")), float(text.get("y", "nan"))
            assert inside(Rect(x, y - px, text_width(words, px, css == "line"), px * 1.2), box)
            written.append(words)
        wanted = "".join([shape.kind.upper(), shape.title, *shape.lines])
        assert re.sub(r"\s", "", "".join(written)) == re.sub(r"\s", "", wanted)
    arrows = {(g.get("data-source"), g.get("data-target")) for g in root.iter(f"{SVG}g") if g.get("class") == "arrow"}
    assert arrows == {(arrow.source, arrow.target) for arrow in picture.arrows}


@PICTURES
def test_nothing_overlaps_and_arrows_go_around(picture: Picture) -> None:
    check_layout(picture)


@PICTURES
def test_the_svg_holds_everything_and_its_text_fits(picture: Picture) -> None:
    check_svg(picture)


@PICTURES
def test_labels_stand_clear_of_shapes_and_of_each_other(picture: Picture) -> None:
    plan = layout(picture)
    labels = [route.spot.rect(text_width(route.label, 11.5)) for route in plan.routes if route.label]
    assert len(labels) == sum(bool(arrow.label) for arrow in picture.arrows)
    assert not any(a.overlaps(b) for a, b in combinations(labels, 2))
    assert not any(label.overlaps(shape) for label in labels for shape in plan.shapes.values())


@settings(deadline=None, max_examples=examples(60))
@given(pictures())
def test_any_picture_can_be_drawn(picture: Picture) -> None:
    check_layout(picture)
    check_svg(picture)
    assert to_svg(picture) == to_svg(picture)


@PICTURES
def test_dot_holds_everything(picture: Picture) -> None:
    text = to_dot(picture)
    assert text.startswith("digraph headrace {")
    assert text.rstrip().endswith("}")
    strings = r'"(?:[^"\\]|\\.)*"'
    bare = re.sub(strings, '""', text)
    assert bare.count('"') % 2 == 0
    assert bare.count("{") == bare.count("}") == 1 + len({shape.group for shape in picture.shapes} - {None})
    for shape in picture.shapes:
        assert len(re.findall(rf'^ +"{shape.id}" \[label=', text, re.M)) == 1
    for arrow in picture.arrows:
        assert f'"{arrow.source}" -> "{arrow.target}"' in text


def test_dot_keeps_each_group_in_a_cluster() -> None:
    clusters = re.findall(r'subgraph cluster_\d+ \{\n +label="([^"]*)";.*\n((?: {4}.*\n)*)  \}', to_dot(CHAIN))
    assert {name: re.findall(r'^ +"(\w+)" \[', body, re.M) for name, body in clusters} == {"prefix": ["s", "m"], "mean calls": ["a", "f"]}


def test_dot_escapes_quotes_and_backslashes() -> None:
    text = to_dot(Picture((Shape('a"b', 'x\\y "z"', ("one\ntwo",)),)))
    assert r'"a\"b" [label="x\\y \"z\"\none\ntwo"' in text


def test_two_arrows_between_the_same_shapes_become_one() -> None:
    picture = Picture((Shape("a", "rows"), Shape("b", "self-join")), (Arrow("a", "b", "left"), Arrow("a", "b", "right")))
    (route,) = layout(picture).routes
    assert route.label == "left, right"


def test_a_long_label_is_cut() -> None:
    picture = Picture((Shape("a", "a"), Shape("b", "b")), (Arrow("a", "b", "x" * 99),))
    (route,) = layout(picture).routes
    assert len(route.label) == 40
    assert route.label.endswith("…")


def test_groups_that_lie_around_each_other_are_drawn_without_outline() -> None:
    shapes = (Shape("a", "a", group="g"), Shape("b", "b", group="h"), Shape("c", "c", group="g"), Shape("d", "d", group="k"))
    picture = Picture(shapes, (Arrow("a", "b"), Arrow("b", "c"), Arrow("c", "d")))
    assert set(layout(picture).groups) == {"k"}


def test_a_chain_is_drawn_straight() -> None:
    plan = layout(CHAIN)
    assert len({round(y, 3) for route in plan.routes for _, y in route.points}) == 1


def test_two_inputs_stand_evenly_around_a_join() -> None:
    plan = layout(Picture(tuple(Shape(each, each) for each in "abj"), (Arrow("a", "j"), Arrow("b", "j"))))
    middle = {each: rect.y + rect.height / 2 for each, rect in plan.shapes.items()}
    assert middle["a"] + middle["b"] == pytest.approx(2 * middle["j"])


def test_an_order_without_crossings_is_found() -> None:
    ends = [("a", "z"), ("b", "y"), ("c", "x")]
    plan = layout(Picture(tuple(Shape(each, each) for each in "abcxyz"), tuple(Arrow(*each) for each in ends)))
    assert all(len({round(y, 3) for _, y in route.points}) == 1 for route in plan.routes)


def test_the_drawing_follows_light_and_dark_and_stands_alone() -> None:
    text = to_svg(CHAIN)
    assert "@media (prefers-color-scheme:dark)" in text
    assert "href" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_a_character_that_xml_cannot_hold_is_replaced() -> None:
    drawn = ElementTree.fromstring(to_svg(Picture((Shape("a\x00", "b\x07\ud800", ("c\x1b",)),), title="<x> & \x01")))
    words = "".join(drawn.itertext())
    assert "<x> & " in words
    assert not any(character in words for character in "\x00\x01\x07\x1b\ud800")


def test_an_empty_picture_is_a_page() -> None:
    ElementTree.fromstring(to_svg(Picture(())))
    assert layout(Picture(())).shapes == {}


def test_heavy_boxes_stay_where_they_want() -> None:
    assert spread_apart([0, 5], [10, 10], [3, 1], gap=2) == [-1.75, 10.25]
    assert spread_apart([], [], [], gap=2) == []


def test_a_label_yields_to_what_is_there() -> None:
    route = [(0.0, 50.0), (100.0, 50.0)]
    (free,) = label_spots([route], [40.0], [])
    assert free == Spot(47.0, 43.0, "middle")
    (below,) = label_spots([route], [40.0], [Rect(0, 0, 100, 48)])
    assert below.y > 50


@pytest.mark.parametrize(
    ("shapes", "arrows", "message"),
    [
        ("aa", [], "picture: wanted shapes with distinct ids; found 'a'"),
        ("ab", [("a", "c")], "picture: wanted arrows between shapes of the picture; found 'c'; use some of a, b"),
        ("ab", [("a", "b"), ("b", "a")], "picture: wanted no cycle; found"),
        ("a", [("a", "a")], "picture: wanted no cycle; found"),
    ],
)
def test_a_mistake_is_named(shapes: str, arrows: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(QueryError) as caught:
        Picture(tuple(Shape(each, each) for each in shapes), tuple(Arrow(*each) for each in arrows))
    assert message in str(caught.value)
    assert caught.value.hint


def test_the_examples_in_docstrings_hold() -> None:
    result = doctest.testmod(sys.modules[spread_apart.__module__])
    assert result.attempted > 0
    assert result.failed == 0
