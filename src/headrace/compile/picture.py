"""A plan as a picture: shapes and arrows from left to right, as SVG or as Graphviz text. It does not use Spark.

The layout has two levels: first the shapes within each group, then groups and single shapes as wholes. So the outline of a group contains
only its own shapes, and no arrow crosses a shape. Groups that feed each other in a circle are drawn without an outline.

The same picture always gives the same text. The SVG needs no other file, and follows the reader's light or dark theme.
"""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Literal

from headrace.compile.layout import Edge, Key, Point, Rect, Spot, cycle_in, label_spots, longest_path, place_boxes
from headrace.errors import QueryError

Kind = Literal["source", "stateless", "stateful", "sink"]

MARGIN, PAD, HEAD, GAP_X = 24.0, 18.0, 22.0, 52.0  # around everything; inside a group; for its name; between ranks
INSET_X, INSET_Y, LINE_HEIGHT = 16.0, 13.0, 17.0  # of the text in a shape
CAPTION_PX, TITLE_PX, LINE_PX, LABEL_PX, GROUP_PX = 9.5, 14.0, 12.0, 11.5, 12.0
LINE_CHARS_MAX, LABEL_CHARS_MAX = 48, 40

COLOURS: dict[Kind, tuple[str, str, str, str]] = {  # accent and fill, light and dark
    "source": ("#2563a8", "#f0f6fd", "#79b4f2", "#16263a"),
    "stateless": ("#5b6470", "#f6f7f9", "#a3adb9", "#20262e"),
    "stateful": ("#a8530b", "#fef5ea", "#f0a860", "#33251a"),
    "sink": ("#1f7a4d", "#eef8f2", "#6fcb9f", "#17302a"),
}


@dataclass(frozen=True)
class Shape:
    """An operator in a picture. `group` is the subquery that it belongs to."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    kind: Kind = "stateless"
    group: str | None = None


@dataclass(frozen=True)
class Arrow:
    """An arrow between two shapes, with a label."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Picture:
    """Shapes and arrows, checked when it is built: distinct ids, arrows between shapes, no cycle."""

    shapes: tuple[Shape, ...]
    arrows: tuple[Arrow, ...] = ()
    title: str = "Headrace plan"

    def __post_init__(self) -> None:
        ids = [shape.id for shape in self.shapes]
        twice = [repr(each) for each, count in Counter(ids).items() if count > 1]
        lost = [repr(each) for arrow in self.arrows for each in (arrow.source, arrow.target) if each not in ids]
        cycle = [repr(key[1]) for key in cycle_in((_shape(arrow.source), _shape(arrow.target)) for arrow in self.arrows)]
        for wanted, found, hint in (
            ("shapes with distinct ids", twice, "give each shape an id of its own"),
            ("arrows between shapes of the picture", lost, f"use some of {', '.join(ids)}"),
            ("no cycle", cycle, "draw a cycle as a sink and a source"),
        ):
            if found:
                raise QueryError(where="picture", wanted=wanted, found=", ".join(found), hint=hint)


@dataclass(frozen=True)
class Route:
    """An arrow as it is drawn: its points, and the position of its label."""

    source: str
    target: str
    label: str
    points: tuple[Point, ...]
    spot: Spot
    group: str | None  # the group that holds all of it


@dataclass(frozen=True)
class Positions:
    """The positions of everything in a picture."""

    width: float
    height: float
    shapes: Mapping[str, Rect]
    groups: Mapping[str, Rect]
    routes: tuple[Route, ...]


def to_dot(picture: Picture) -> str:
    """The picture in Graphviz's DOT language. Each group is a cluster."""
    lines = ["digraph headrace {", "  rankdir=LR;", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    groups = list(dict.fromkeys(shape.group for shape in picture.shapes))
    for number, group in enumerate(groups):
        indent = "  "
        if group is not None:
            lines += [f"  subgraph cluster_{number} {{", f'    label="{_dot(group)}"; style="rounded,dashed";']
            indent = "    "
        for shape in picture.shapes:
            if shape.group == group:
                text = "\\n".join(_dot(line) for line in (shape.title, *shape.lines))
                accent, fill, *_ = COLOURS[shape.kind]
                lines.append(f'{indent}"{_dot(shape.id)}" [label="{text}", color="{accent}", fillcolor="{fill}"];')
        if group is not None:
            lines.append("  }")
    for arrow in picture.arrows:
        label = f' [label="{_dot(arrow.label)}"]' if arrow.label else ""
        lines.append(f'  "{_dot(arrow.source)}" -> "{_dot(arrow.target)}"{label};')
    return "\n".join([*lines, "}", ""])


def to_svg(picture: Picture) -> str:
    """The picture as a self-contained SVG."""
    plan = layout(picture)
    width, height = math.ceil(plan.width), math.ceil(plan.height)
    name = _xml(picture.title)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="headrace" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{name}">',
        f"<title>{name}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="10"/>',
    ]
    for group, rect in plan.groups.items():
        lines.append(f'<g class="group"><rect {_rect(rect)} rx="12"/>{_text(rect.x + PAD, rect.y + PAD + 2, group)}</g>')
    lines += [_route_svg(route) for route in plan.routes]
    lines += [_shape_svg(shape, plan.shapes[shape.id]) for shape in picture.shapes]
    lines += [
        _text(route.spot.x, route.spot.y, route.label, f'class="label{" in" if route.group else ""}" text-anchor="{route.spot.anchor}"')
        for route in plan.routes
        if route.label
    ]
    return "\n".join([*lines, "</svg>", ""])


def layout(picture: Picture) -> Positions:
    """The positions of all shapes and arrows. Arrows between the same two shapes become one, with the labels of all."""
    labels: dict[tuple[str, str], list[str]] = {}
    for arrow in picture.arrows:
        labels.setdefault((arrow.source, arrow.target), []).append(arrow.label)
    arrows = [Arrow(*ends, _cut(", ".join(filter(None, texts)))) for ends, texts in labels.items()]
    home = _homes(picture)
    sizes = {shape.id: _size(shape) for shape in picture.shapes}
    inner: dict[Key, _Inner] = {}
    for key in dict.fromkeys(home.values()):
        members = [each for each, owner in home.items() if owner == key]
        inner[key] = _inside(key, members, sizes, [arrow for arrow in arrows if key in (home[arrow.source], home[arrow.target])])
    between = [arrow for arrow in arrows if home[arrow.source] != home[arrow.target]]
    edges = [_edge(arrow, home, inner) for arrow in between]
    ranks = longest_path(inner, edges)
    outer = place_boxes(
        {key: (each.width, each.height) for key, each in inner.items()}, edges, ranks, [GAP_X] * max(ranks.values(), default=0)
    )

    corner = {key: (x + MARGIN, y + MARGIN) for key, (x, y) in outer.at.items()}
    shapes = {each: _moved(inner[key].shapes[each], corner[key]) for each, key in home.items()}
    groups = {key[1]: Rect(*corner[key], each.width, each.height) for key, each in inner.items() if key[0] == "group"}
    ways: list[tuple[Arrow, str | None, list[Point]]] = []
    for key, each in inner.items():
        ways += [(arrow, key[1], [_sum(point, corner[key]) for point in points]) for arrow, points in each.routes]
    for arrow, middle in zip(between, outer.routes, strict=True):
        start, end = home[arrow.source], home[arrow.target]
        points = [_sum(point, corner[start]) for point in inner[start].out[arrow.source]]
        points += [_sum(point, (MARGIN, MARGIN)) for point in middle]
        points += [_sum(point, corner[end]) for point in inner[end].into[arrow.target]]
        ways.append((arrow, None, points))
    names = [Rect(rect.x, rect.y, text_width(name, GROUP_PX, bold=True) + PAD, PAD + 4) for name, rect in groups.items()]
    spots = label_spots([points for _, _, points in ways], [_label_width(arrow) for arrow, _, _ in ways], [*shapes.values(), *names])
    routes = tuple(
        Route(arrow.source, arrow.target, arrow.label, tuple(points), spot, group)
        for (arrow, group, points), spot in zip(ways, spots, strict=True)
    )
    return Positions(outer.width + 2 * MARGIN, outer.height + 2 * MARGIN, shapes, groups, routes)


@dataclass(frozen=True)
class _Inner:
    """The layout inside a group or a single shape: its shapes, and the routes from each shape to the border."""

    width: float
    height: float
    shapes: dict[str, Rect]
    routes: list[tuple[Arrow, list[Point]]]
    into: dict[str, list[Point]]
    out: dict[str, list[Point]]


def _inside(key: Key, members: list[str], sizes: Mapping[str, Point], arrows: list[Arrow]) -> _Inner:
    if key[0] == "shape":
        (width, height), middle = sizes[key[1]], sizes[key[1]][1] / 2
        return _Inner(width, height, {key[1]: Rect(0, 0, width, height)}, [], {key[1]: [(0, middle)]}, {key[1]: [(width, middle)]})
    own = [arrow for arrow in arrows if arrow.source in members and arrow.target in members]
    enter = list(dict.fromkeys(arrow.target for arrow in arrows if arrow.source not in members))
    leave = list(dict.fromkeys(arrow.source for arrow in arrows if arrow.target not in members))
    edges = [Edge(_shape(a.source), _shape(a.target), sizes[a.source][1] / 2, sizes[a.target][1] / 2, _label_width(a)) for a in own]
    ranks = {each: rank + 1 for each, rank in longest_path([_shape(each) for each in members], edges).items()}
    last = max(ranks.values()) + 1
    # The ports at the left and the right border are ranks of their own.
    edges += [Edge(("in", each), _shape(each), 0, sizes[each][1] / 2) for each in enter]
    edges += [Edge(_shape(each), ("out", each), sizes[each][1] / 2, 0) for each in leave]
    ranks.update({("in", each): 0 for each in enter})
    ranks.update({("out", each): last for each in leave})
    boxes = {each: sizes[each[1]] if each[0] == "shape" else (0.0, 0.0) for each in ranks}
    placed = place_boxes(boxes, edges, ranks, [PAD, *[GAP_X] * (last - 2), PAD])
    shift = (0.0, PAD + HEAD)
    width = max(placed.width, text_width(key[1], GROUP_PX, bold=True) + 2 * PAD)
    ways = [[_sum(point, shift) for point in route] for route in placed.routes]
    into = dict(zip(enter, ways[len(own) :], strict=False))
    out = {each: [*way, (width, way[-1][1])] for each, way in zip(leave, ways[len(own) + len(enter) :], strict=True)}
    shapes = {each: _moved(Rect(0, 0, *sizes[each]), _sum(placed.at[_shape(each)], shift)) for each in members}
    return _Inner(width, placed.height + HEAD + 2 * PAD, shapes, list(zip(own, ways, strict=False)), into, out)


def _homes(picture: Picture) -> dict[str, Key]:
    """For each shape the key of its group, or of the shape itself if it has none."""
    loose: set[str | None] = {None}
    while True:
        home = {shape.id: _shape(shape.id) if shape.group in loose else ("group", str(shape.group)) for shape in picture.shapes}
        ends = [(home[arrow.source], home[arrow.target]) for arrow in picture.arrows]
        around = cycle_in((source, target) for source, target in ends if source != target)
        if not around:
            return home
        loose |= {key[1] for key in around if key[0] == "group"}


def _shape(name: str) -> Key:
    return ("shape", name)


def _edge(arrow: Arrow, home: Mapping[str, Key], inner: Mapping[Key, _Inner]) -> Edge:
    start, end = home[arrow.source], home[arrow.target]
    return Edge(start, end, inner[start].out[arrow.source][-1][1], inner[end].into[arrow.target][0][1], _label_width(arrow))


def _sum(a: Point, b: Point) -> Point:
    return a[0] + b[0], a[1] + b[1]


def _moved(rect: Rect, by: Point) -> Rect:
    return Rect(rect.x + by[0], rect.y + by[1], rect.width, rect.height)


# Text. Widths are estimated generously, because the reader's fonts are not known.


def text_width(text: str, px: float, mono: bool = False, bold: bool = False) -> float:
    """The estimated width of a text at this font size."""
    return px * sum(_em(char, mono) for char in text) * (1.1 if bold else 1)


def _em(char: str, mono: bool) -> float:
    if unicodedata.east_asian_width(char) in "WF":
        return 1.25
    if mono:
        return 0.63
    if char in "il.,:;|!'()[]{}tfjrI ":
        return 0.42
    if char in "mwMW@%—…":
        return 1.02
    return 0.74 if char.isupper() or char in "_+=<>~&#" else 0.64


def _label_width(arrow: Arrow) -> float:
    return text_width(arrow.label, LABEL_PX)


def _cut(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"


def _rows(shape: Shape) -> list[tuple[str, float, str]]:
    """The lines of text in a shape: text, font size, CSS class."""
    rows = [(shape.kind.upper(), CAPTION_PX, "caption")]
    rows += [(row, TITLE_PX, "title") for row in textwrap.wrap(shape.title, LINE_CHARS_MAX - 8) or [""]]
    for line in shape.lines:
        rows += [(row, LINE_PX, "line") for row in textwrap.wrap(line, LINE_CHARS_MAX, subsequent_indent="  ") or [""]]
    return rows


def _size(shape: Shape) -> Point:
    rows = _rows(shape)
    # Small capitals are wider.
    widths = [text_width(text, px, css == "line", css != "line") + (len(text) if css == "caption" else 0) for text, px, css in rows]
    return max(widths) + 2 * INSET_X, len(rows) * LINE_HEIGHT + 2 * INSET_Y


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes and " " + attributes}>{_xml(text)}</text>'


def _rect(rect: Rect) -> str:
    return f'x="{rect.x:.1f}" y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}"'


def _shape_svg(shape: Shape, rect: Rect) -> str:
    texts = "".join(
        _text(rect.x + INSET_X, rect.y + INSET_Y + LINE_HEIGHT * (index + 0.72), text, f'class="{css}" xml:space="preserve"')
        for index, (text, _, css) in enumerate(_rows(shape))
    )
    return f'<g class="shape {shape.kind}" data-id="{_xml(shape.id)}"><rect {_rect(rect)} rx="9"/>{texts}</g>'


def _route_svg(route: Route) -> str:
    """An SVG path: straight where the route is horizontal, otherwise curves that start and end horizontally."""
    x, y = route.points[0]
    path = [f"M{x:.1f},{y:.1f}"]
    end_x, end_y = route.points[-1]
    for to_x, to_y in [*route.points[1:-1], (end_x - 7, end_y)]:
        middle = (x + to_x) / 2
        path.append(f"H{to_x:.1f}" if abs(to_y - y) < 0.05 else f"C{middle:.1f},{y:.1f} {middle:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}")
        x, y = to_x, to_y
    head = f"M{end_x - 1:.1f},{end_y:.1f}l-9,-4.5v9z"
    names = f'data-source="{_xml(route.source)}" data-target="{_xml(route.target)}"'
    return f'<g class="arrow" {names}><path class="wire" d="{"".join(path)}"/><path class="head" d="{head}"/></g>'


def _style() -> str:
    """CSS rules without variables, which some SVG viewers do not support."""
    sans, mono = (
        "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif",
        "ui-monospace,'SF Mono',Menlo,'DejaVu Sans Mono',monospace",
    )
    rules = [f"text{{font:{LABEL_PX}px {sans}}}", ".shape rect{stroke-width:1.4}", ".wire{fill:none;stroke-width:1.5}"]
    rules += [
        f".caption{{font-size:{CAPTION_PX}px;font-weight:600;letter-spacing:.8px}}",
        f".title{{font-size:{TITLE_PX}px;font-weight:600}}",
    ]
    rules += [f".line{{font:{LINE_PX}px {mono}}}", f".group text{{font-size:{GROUP_PX}px;font-weight:600}}"]
    rules += [".group rect{stroke-dasharray:5 4}", ".label{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"]

    def scheme(page: str, group: str, edge: str, ink: str, soft: str, wire: str, dark: bool) -> list[str]:
        found = [f".page{{fill:{page}}}", f".group rect{{fill:{group};stroke:{edge}}}", f".title{{fill:{ink}}}", f".line{{fill:{soft}}}"]
        found += [f".group text{{fill:{soft}}}", f".wire{{stroke:{wire}}}", f".head{{fill:{wire}}}"]
        found += [f".label{{fill:{soft};stroke:{page}}}", f".label.in{{stroke:{group}}}"]
        for kind, colours in COLOURS.items():
            accent, fill = colours[2:] if dark else colours[:2]
            found += [f".{kind} rect{{fill:{fill};stroke:{accent}}}", f".{kind} .caption{{fill:{accent}}}"]
        return found

    rules += scheme("#ffffff", "#fafbfc", "#c3cad3", "#1b2027", "#4d5763", "#7b8694", dark=False)
    night = scheme("#14181d", "#1a1f26", "#414b57", "#eef1f5", "#b6c0cc", "#8793a1", dark=True)
    # Each rule names the drawing, because a page may contain several.
    day_text, night_text = ("".join(f".headrace {rule}" for rule in each) for each in (rules, night))
    return f"{day_text}@media (prefers-color-scheme:dark){{{night_text}}}"


def _xml(text: str) -> str:
    """Text escaped for XML, without characters that XML does not allow."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
