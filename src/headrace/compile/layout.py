"""A layered graph layout, from left to right, for boxes of any size. It uses neither pictures nor Spark.

The steps are those of Sugiyama:

    ranks    a box is placed to the right of all its inputs (longest path)
    lanes    an edge over several ranks gets an empty row in each rank between, so that it crosses no box
    order    boxes of a rank are sorted by the mean position of their neighbours, back and forth; the order with fewest crossings wins
    heights  each box is placed as near to the mean height of its neighbours as order and gaps permit (isotonic regression);
             lanes have a higher weight, so that they are straight
    labels   each label takes the position along its edge where it overlaps least

The layout is deterministic: the same boxes and edges always give the same layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

Point = tuple[float, float]
Key = tuple[str, ...]  # the caller's own; ("lane", edge, rank) is ours
Link = tuple[Key, Key, float, float]  # from, to, and how far below the tops of both boxes it ends

GAP_Y, LANE = 26.0, 8.0  # between rows; a lane's height
LABEL_UP = 11.0  # from a label's baseline to its top
LANE_WEIGHT = 8.0
SWEEPS = 8


@dataclass(frozen=True)
class Edge:
    """An edge between two boxes: where it leaves and enters them, and the room that its label needs."""

    source: Key
    target: Key
    out_y: float  # below the source's top
    in_y: float
    room: float = 0.0  # the label's width


@dataclass(frozen=True)
class Rect:
    """An axis-parallel rectangle."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Rect) -> bool:
        across = self.x < other.x + other.width and other.x < self.x + self.width
        return across and self.y < other.y + other.height and other.y < self.y + self.height

    def holds(self, point: Point) -> bool:
        return self.x <= point[0] <= self.x + self.width and self.y <= point[1] <= self.y + self.height


@dataclass(frozen=True)
class Spot:
    """The position of a label, and the direction in which its text runs from there."""

    x: float
    y: float
    anchor: Literal["start", "middle", "end"]

    def rect(self, width: float) -> Rect:
        left = self.x - width * {"start": 0, "middle": 0.5, "end": 1}[self.anchor]
        return Rect(left - 2, self.y - LABEL_UP, width + 4, LABEL_UP + 4)


@dataclass(frozen=True)
class Placed:
    """The result of a layout: the positions of boxes and the routes of edges."""

    at: dict[Key, Point]  # top left
    routes: list[list[Point]]  # one per edge
    width: float
    height: float


def cycle_in(pairs: Iterable[tuple[Key, Key]]) -> list[Key]:
    """The keys of one cycle, or an empty list if there is none."""
    sorter: TopologicalSorter[Key] = TopologicalSorter()
    for source, target in pairs:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def longest_path(keys: Iterable[Key], edges: Iterable[Edge]) -> dict[Key, int]:
    """The rank of every key: 0 if no edge leads into it, otherwise one more than the greatest rank of its inputs."""
    before: dict[Key, list[Key]] = {key: [] for key in keys}
    for edge in edges:
        before[edge.target].append(edge.source)
    ranks: dict[Key, int] = {}
    for key in TopologicalSorter(before).static_order():
        ranks[key] = max((ranks[each] + 1 for each in before[key]), default=0)
    return {key: ranks[key] for key in before}


def place_boxes(sizes: Mapping[Key, Point], edges: Sequence[Edge], ranks: Mapping[Key, int], gaps: Sequence[float]) -> Placed:
    """Place every box and route every edge of one level. `gaps` are the minimum gaps between ranks."""
    layers: list[list[Key]] = [[key for key in sizes if ranks[key] == rank] for rank in range(len(gaps) + 1)]
    heights = {key: height for key, (_, height) in sizes.items()}
    chains: list[list[Key]] = []
    for number, edge in enumerate(edges):
        lanes: list[Key] = []
        for rank in range(ranks[edge.source] + 1, ranks[edge.target]):
            lanes.append(("lane", str(number), str(rank)))
            layers[rank].append(lanes[-1])
            heights[lanes[-1]] = LANE
        chains.append([edge.source, *lanes, edge.target])
    links = [
        (u, v, edge.out_y if u == edge.source else LANE / 2, edge.in_y if v == edge.target else LANE / 2)
        for edge, way in zip(edges, chains, strict=True)
        for u, v in pairwise(way)
    ]
    tops = _heights(_order(layers, links, heights), links, heights)
    outs, ins = Counter((e.source, e.out_y) for e in edges), Counter((e.target, e.in_y) for e in edges)
    gap = list(gaps)
    for edge in edges:
        # The label needs room at the end that the edge does not share, and more room where edges fan out.
        together, apart = ins[edge.target, edge.in_y], outs[edge.source, edge.out_y]
        first = together > 1 and apart == 1
        room = edge.room + 44 if together == apart == 1 else 1.2 * edge.room + 64
        at = ranks[edge.source] if first else ranks[edge.target] - 1
        gap[at] = max(gap[at], room if edge.room else 0)
    widths = [max((sizes[key][0] for key in layer if key in sizes), default=0.0) for layer in layers]
    lefts = [sum(widths[:rank]) + sum(gap[:rank]) for rank in range(len(layers))]
    routes = []
    for edge, way in zip(edges, chains, strict=True):
        at, end = ranks[edge.source], ranks[edge.target]
        start_y, end_y = tops[edge.source] + edge.out_y, tops[edge.target] + edge.in_y
        points = [(lefts[at] + sizes[edge.source][0], start_y), (lefts[at] + widths[at], start_y)]
        for rank, lane in enumerate(way[1:-1], at + 1):
            points += [(lefts[rank], tops[lane] + LANE / 2), (lefts[rank] + widths[rank], tops[lane] + LANE / 2)]
        routes.append([*points, (lefts[end], end_y)])
    at_corner = {key: (lefts[ranks[key]], tops[key]) for key in sizes}
    height = max((tops[key] + heights[key] for key in tops), default=0.0)
    return Placed(at_corner, routes, lefts[-1] + widths[-1], height)


def label_spots(routes: Sequence[Sequence[Point]], widths: Sequence[float], taken: Iterable[Rect]) -> list[Spot]:
    """The position of each route's label. A label of width 0 takes no room. No label may overlap `taken`."""
    busy = list(taken)
    wires = [point for route in routes for piece in pairwise(route) for point in along(*piece)]
    found = []
    for route, width in zip(routes, widths, strict=True):

        def harm(ranked: tuple[int, Spot], width: float = width) -> float:
            rect = ranked[1].rect(width)
            return ranked[0] + 1000 * sum(rect.overlaps(other) for other in busy) + 10 * sum(rect.holds(point) for point in wires)

        _, spot = min(enumerate(_candidates(route, width)), key=harm)
        found.append(spot)
        if width:
            busy.append(spot.rect(width))
    return found


def _candidates(route: Sequence[Point], width: float) -> Iterator[Spot]:
    """Possible positions, best first: near the target, above the line before below it, on the side away from its bend."""
    pieces = list(pairwise(route))[::-1]
    for (x0, y0), (x1, y1) in pieces:
        if abs(y1 - y0) < 1:
            if x1 - x0 > width + 12:
                yield from (Spot((x0 + x1) / 2 - 3, y0 + dy, "middle") for dy in (-7, 15))
                yield from (Spot(x1 - 12, y0 + dy, "end") for dy in (-7, 15))
        else:
            yield Spot(x1 - 12, y1 + (15 if y0 < y1 else -7), "end")
            yield Spot(x0 + 8, y0 + (15 if y1 < y0 else -7), "start")
    yield Spot(route[-1][0] - 12, route[-1][1] - 7, "end")


def along(start: Point, end: Point) -> Iterator[Point]:
    """Points of the curve between two points. The curve is horizontal at both ends."""
    (x0, y0), (x1, y1) = start, end
    steps = 1 + int((abs(x1 - x0) + abs(y1 - y0)) / 4)
    for t in (step / steps for step in range(steps + 1)):
        yield x0 * (1 - t) ** 3 + 1.5 * (x0 + x1) * t * (1 - t) + x1 * t**3, y0 + (y1 - y0) * t * t * (3 - 2 * t)


def _order(layers: list[list[Key]], links: Sequence[Link], heights: Mapping[Key, float]) -> list[list[Key]]:
    best, fewest = layers, _crossings(layers, links, heights)
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        layers = [list(layer) for layer in layers]
        for layer in layers if forth else layers[::-1]:
            place = _ports(layers, heights)
            near: dict[Key, list[float]] = {key: [] for key in layer}
            for u, v, out_y, in_y in links:
                if forth and v in near:
                    near[v].append(place(u, out_y))
                elif not forth and u in near:
                    near[u].append(place(v, in_y))
            now = {key: float(index) for index, key in enumerate(layer)}
            layer.sort(key=lambda key: (sum(near[key]) / len(near[key]) if near[key] else now[key], now[key]))
        crossings = _crossings(layers, links, heights)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _ports(layers: Sequence[Sequence[Key]], heights: Mapping[Key, float]) -> Callable[[Key, float], float]:
    """A function for the position of a port in its layer: the index of its box, plus a fraction for how far down the box it is."""
    index = {key: number for layer in layers for number, key in enumerate(layer)}
    return lambda key, y: index[key] + (y / heights[key] if heights[key] else 0.5)


def _crossings(layers: Sequence[Sequence[Key]], links: Sequence[Link], heights: Mapping[Key, float]) -> int:
    rank = {key: number for number, layer in enumerate(layers) for key in layer}
    place = _ports(layers, heights)
    ends = [(rank[u], place(u, out_y), place(v, in_y)) for u, v, out_y, in_y in links]
    return sum(a[0] == b[0] and (a[1] - b[1]) * (a[2] - b[2]) < 0 for i, a in enumerate(ends) for b in ends[:i])


def _heights(layers: Sequence[Sequence[Key]], links: Sequence[Link], heights: Mapping[Key, float]) -> dict[Key, float]:
    """The y coordinate of the top of every box. The highest box is at 0."""
    tops: dict[Key, float] = {}
    for layer in layers:
        tops |= zip(layer, spread_apart([0.0] * len(layer), [heights[key] for key in layer], [1.0] * len(layer), GAP_Y), strict=True)
    for sweep in range(2 * SWEEPS + 1):
        forth = sweep % 2 == 0  # The last sweep goes forth too, so that edges leave their boxes straight.
        for layer in layers if forth else layers[::-1]:
            near: dict[Key, list[float]] = {key: [] for key in layer}
            for u, v, out_y, in_y in links:
                if forth and v in near:
                    near[v].append(tops[u] + out_y - in_y)
                elif not forth and u in near:
                    near[u].append(tops[v] + in_y - out_y)
            wanted = [sum(near[key]) / len(near[key]) if near[key] else tops[key] for key in layer]
            weights = [LANE_WEIGHT if key[0] == "lane" else 1.0 for key in layer]
            tops |= zip(layer, spread_apart(wanted, [heights[key] for key in layer], weights, GAP_Y), strict=True)
    least = min(tops.values(), default=0.0)
    return {key: top - least for key, top in tops.items()}


def spread_apart(wanted: Sequence[float], sizes: Sequence[float], weights: Sequence[float], gap: float) -> list[float]:
    """Tops in the given order, at least `gap` apart, as near to the wanted ones as possible (least squares, by pooling neighbours).

    >>> spread_apart([0.0, 5.0, 40.0], [10.0, 10.0, 10.0], [1.0, 1.0, 1.0], gap=2.0)
    [-3.5, 8.5, 40.0]
    """
    offsets = [sum(sizes[:index]) + gap * index for index in range(len(sizes))]
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for want, offset, own in zip(wanted, offsets, weights, strict=True):
        mean, weight, count = want - offset, own, 1
        while pools and pools[-1][0] > mean:
            other, others, more = pools.pop()
            mean, weight, count = (mean * weight + other * others) / (weight + others), weight + others, count + more
        pools.append((mean, weight, count))
    shifts = [mean for mean, _, count in pools for _ in range(count)]
    return [offset + shift for offset, shift in zip(offsets, shifts, strict=True)]
