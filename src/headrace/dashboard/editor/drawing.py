"""A query drawn as boxes and arrows: what a drawing may be, and what is wrong with one.

    source --> filter --> aggregate --> sink
                  split --branch--> ...

A drawing comes from the page as JSON. While somebody draws, most drawings are not finished. So nothing here raises an error for a box that
lacks something: `Drawing.problems` lists what is missing by box, and boxes without problems already have a text.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace.errors import QueryError

KINDS = {"source": 0, "filter": 1, "select": 1, "aggregate": 1, "join": 2, "split": 1, "union": 2, "sink": 1}
"""By kind of box: the number of its inputs. A union takes two or more."""
JOINS = ("inner", "left", "right", "full", "semi", "anti")
WINDOWS = ("none", "tumbling", "sliding", "session")
OTHERWISE = "else"
"""The branch of a split for rows that no condition takes."""
BOXES_MAX = 200
TEXT_CHARS_MAX = 10_000
TAKEN = {"spark", "F", "Window", "hr", "result"}
"""Names that a text has already."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a box, in words for its author."""

    box: str
    message: str


@dataclass(frozen=True)
class Wire:
    """An arrow. `branch` is the branch of a split that it begins at, `port` the input of the box that it ends at: 0 or 1."""

    source: str
    target: str
    branch: str = ""
    port: int = 0


@dataclass(frozen=True)
class Box:
    """A box. What its settings are called depends on its kind; all of them are texts."""

    id: str
    kind: str
    name: str
    settings: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.settings.get(name, "").strip()

    def items(self, name: str) -> list[str]:
        """A setting with several expressions, divided at commas and line ends outside brackets and quotes."""
        return expressions(self.text(name))

    @property
    def branches(self) -> list[tuple[str, str]]:
        """Of a split: names and conditions, in the order in which they are tried."""
        pairs = [line.partition(":") for line in self.text("branches").splitlines() if line.strip()]
        return [(name.strip(), condition.strip()) for name, _, condition in pairs]


@dataclass(frozen=True)
class Drawing:
    """Boxes and wires. Raises an error only for what the page never sends."""

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]

    @classmethod
    def read(cls, data: Any) -> Drawing:
        """A drawing from JSON: ``{"boxes": [{"id", "kind", "name", "settings"}], "wires": [{"source", "target", "branch", "port"}]}``."""
        try:
            boxes = tuple(
                Box(str(each["id"]), str(each["kind"]), str(each["name"]), {str(k): str(v) for k, v in each.get("settings", {}).items()})
                for each in data["boxes"]
            )
            wires = tuple(
                Wire(str(each["source"]), str(each["target"]), str(each.get("branch") or ""), int(each.get("port") or 0))
                for each in data["wires"]
            )
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise QueryError(where="drawing", wanted="boxes and wires", found=f"{type(wrong).__name__}: {wrong}") from None
        return cls(boxes, wires)

    def __post_init__(self) -> None:
        ids = [each.id for each in self.boxes]
        for wanted, is_wrong, found in (
            (f"at most {BOXES_MAX} boxes", len(ids) > BOXES_MAX, str(len(ids))),
            ("boxes with distinct ids", len(set(ids)) < len(ids), "one twice"),
            (f"boxes of a kind: {', '.join(KINDS)}", any(each.kind not in KINDS for each in self.boxes), "another kind"),
            ("wires between boxes", any(each.source not in ids or each.target not in ids for each in self.wires), "a wire to nothing"),
            ("texts of a usual length", any(len(v) > TEXT_CHARS_MAX for b in self.boxes for v in b.settings.values()), "a longer one"),
        ):
            if is_wrong:
                raise QueryError(where="drawing", wanted=wanted, found=found)

    def inputs(self, box: Box) -> list[Wire]:
        """The wires that end at a box, in the order of its inputs."""
        return sorted((each for each in self.wires if each.target == box.id), key=lambda each: each.port)

    def box(self, id: str) -> Box:
        return next(each for each in self.boxes if each.id == id)

    @cached_property
    def order(self) -> tuple[Box, ...]:
        """Boxes after all that they read. Those in a circle, and those behind it, are left out."""
        done: dict[str, Box] = {}
        left = list(self.boxes)
        while ready := [each for each in left if all(wire.source in done for wire in self.inputs(each))]:
            done.update({each.id: each for each in ready})
            left = [each for each in left if each.id not in done]
        return tuple(done.values())

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong, box by box; empty if the drawing is finished."""
        found = [Problem(box.id, message) for box in self.boxes for message in (*self._wrong_wires(box), *_wrong_settings(box))]
        placed = {each.id for each in self.order}
        found += [Problem(each.id, "its arrows lead in a circle") for each in self.boxes if each.id not in placed]
        names: dict[str, str] = {}
        for box in self.boxes:
            for name in self.outputs(box).values():
                if name in names and names[name] != box.id:
                    found.append(Problem(box.id, f"its name {name} is taken by another box"))
                names.setdefault(name, box.id)
        hiding = [each for each in self.boxes if self._hides_stream(each)]
        found += [Problem(each.id, f"its name {each.name} is that of a stream: choose another") for each in hiding]
        return tuple(found)

    @cached_property
    def usable(self) -> tuple[Box, ...]:
        """The boxes that have a text: nothing is wrong with them or with anything that they read."""
        wrong, found = {each.box for each in self.problems}, dict[str, Box]()
        for box in self.order:
            if box.id not in wrong and all(wire.source in found for wire in self.inputs(box)):
                found[box.id] = box
        return tuple(found.values())

    def outputs(self, box: Box) -> dict[str, str]:
        """By branch: the name of what leaves a box. A box that is no split has the branch ``""``; a sink has none."""
        if box.kind == "sink":
            return {}
        if box.kind == "split":
            return {branch: f"{box.name}_{branch}" for branch in [*(name for name, _ in box.branches), OTHERWISE]}
        return {"": box.name}

    def _hides_stream(self, box: Box) -> bool:
        """True if steps that read a stream by its name would get the rows of this box instead."""
        readers = [each for each in self.boxes if each.kind == "source" and each.text("stream") in self.outputs(box).values()]
        return any(each.id != box.id for each in readers) and not (box in readers and not box.text("time"))

    def _wrong_wires(self, box: Box) -> Iterator[str]:
        wires, wanted = self.inputs(box), KINDS[box.kind]
        if box.kind == "union":
            if len(wires) < wanted:
                yield f"a union needs two or more inputs, and has {len(wires)}"
        elif len(wires) != wanted:
            yield f"a {box.kind} needs {('no input', 'one input', 'two inputs')[wanted]}, and has {len(wires) or 'none'}"
        elif box.kind == "join" and [each.port for each in wires] != [0, 1]:
            yield "a join needs a left and a right input"
        for wire in wires:
            source = self.box(wire.source)
            if source.kind == "sink":
                yield "a sink has no output"
            elif wire.branch not in self.outputs(source):
                yield f"the branch {wire.branch or '(none)'} is not one of {source.name}"


def expressions(text: str) -> list[str]:
    """A list of SQL expressions, divided at commas and line ends outside brackets and quotes.

    >>> expressions("src, round(x, 2) AS y\\ndst")
    ['src', 'round(x, 2) AS y', 'dst']
    >>> expressions("concat(a, ','), `a,b`")
    ["concat(a, ',')", '`a,b`']
    """
    found, depth, quote = [""], 0, ""
    for each in text:
        if quote:
            quote = "" if each == quote else quote
        elif each in "'\"`":
            quote = each
        elif each in "([{":
            depth += 1
        elif each in ")]}":
            depth -= 1
        elif each in ",\n" and depth <= 0:
            found.append("")
            continue
        found[-1] += each
    return [each.strip() for each in found if each.strip()]


def is_name(text: str) -> bool:
    """True for a name that a text may give to rows, in Python and in SQL."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None and not keyword.iskeyword(text) and text not in TAKEN


def _wrong_settings(box: Box) -> Iterator[str]:
    if box.kind != "sink" and not is_name(box.name):
        yield f"its name must be letters, digits and _, and none of {', '.join(sorted(TAKEN))}"
    elif box.kind == "sink" and not box.name.strip():
        yield "it needs a name"
    yield from _WRONG[box.kind](box)


def _source(box: Box) -> Iterator[str]:
    if not box.text("stream"):
        yield "choose a stream"
    if bool(box.text("time")) != bool(box.text("delay")):
        yield "a watermark needs a time column and a delay, such as 10 minutes"


def _filter(box: Box) -> Iterator[str]:
    if not box.text("condition"):
        yield "give a condition, such as seconds > 30"


def _select(box: Box) -> Iterator[str]:
    if not box.items("columns"):
        yield "give columns or expressions, such as price * amount AS total"


def _aggregate(box: Box) -> Iterator[str]:
    if not box.items("functions"):
        yield "give functions, such as sum(seconds) AS total"
    window = box.text("window") or "none"
    if window not in WINDOWS:
        yield f"its window must be {', '.join(WINDOWS)}"
    elif window != "none":
        if not box.text("time"):
            yield "a window needs a time column"
        if not box.text("size"):
            yield "a window needs a gap, such as 5 minutes" if window == "session" else "a window needs a size, such as 5 minutes"
        if window == "sliding" and not box.text("slide"):
            yield "a sliding window needs an advance, such as 1 minute"


def _join(box: Box) -> Iterator[str]:
    if (box.text("kind") or "inner") not in JOINS:
        yield f"its kind must be {', '.join(JOINS)}"
    if not box.text("condition") and not box.items("keys"):
        yield "give columns that both inputs have, or a condition such as l.id = r.id"


def _split(box: Box) -> Iterator[str]:
    names = [name for name, _ in box.branches]
    if not names:
        yield "give branches, one a line, such as long: seconds > 600"
    for name, condition in box.branches:
        if not is_name(name) or name == OTHERWISE or not condition:
            yield f"the branch {name!r} needs a name of letters, digits and _, and a condition behind a colon"
    if len(set(names)) < len(names):
        yield "its branches need different names"


def _nothing(box: Box) -> Iterator[str]:
    return iter(())


_WRONG = {
    "source": _source,
    "filter": _filter,
    "select": _select,
    "aggregate": _aggregate,
    "join": _join,
    "split": _split,
    "union": _nothing,
    "sink": _nothing,
}
