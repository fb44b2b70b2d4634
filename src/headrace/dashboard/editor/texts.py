"""From a drawing to the SQL or PySpark text that it stands for. Both mean the same.

Each box becomes a step with a name: a query of a WITH clause, or a variable. What the author has written into a box goes into the text
as it is, on lines of its own, so that an error of Spark's at a line is an error of that box.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.dashboard.editor.drawing import Box, Drawing, Problem, is_name

SQL, PYSPARK = "sql", "pyspark"
LANGUAGES = (SQL, PYSPARK)
_ALIAS = re.compile(r"\s+as\s+(\w+|`[^`]+`)\s*$", re.IGNORECASE)
_SQL_JOINS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}
_PYSPARK_JOINS = {"semi": "left_semi", "anti": "left_anti"}
WORDS = """
    all and anti any as by case cross distinct else end exists from full group having in inner intersect is join lateral left like limit
    natural not null on or order outer right select semi set then union using values when where window with
"""
"""Words of SQL that are quoted as names."""
_WORDS = frozenset(WORDS.split())


@dataclass(frozen=True)
class Text:
    """The text of a drawing, or of its finished part."""

    language: str
    text: str
    boxes: tuple[str, ...]
    """By line: the id of the box that it comes from; empty for lines of none."""
    outputs: tuple[str, ...]
    """The names of the sinks that have rows, in the order of the results."""
    problems: tuple[Problem, ...]
    frames: tuple[tuple[str, str], ...] = ()
    """Names of the steps, each with the id of its box."""


class _Lines:
    """Lines of a text, each with its box."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.boxes: list[str] = []

    def add(self, text: str, box: str = "") -> None:
        for line in text.split("\n"):
            self.lines.append(line)
            self.boxes.append(box)


def text_of(drawing: Drawing, language: str) -> Text:
    """The text of what is finished of a drawing, and what is wrong with the rest."""
    return _sql(drawing) if language == SQL else _pyspark(drawing)


def quoted(name: str) -> str:
    """A name as SQL takes it. Parts of a name with dots are quoted one by one.

    >>> quoted("calls"), quoted("my calls"), quoted("order")
    ('calls', '`my calls`', '`order`')
    """
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in _WORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def _name_behind(drawing: Drawing, box: Box, port: int) -> str:
    wire = drawing.inputs(box)[port]
    return drawing.outputs(drawing.box(wire.source))[wire.branch]


def _names(drawing: Drawing, box: Box) -> list[str]:
    return [_name_behind(drawing, box, at) for at in range(len(drawing.inputs(box)))]


def _steps(drawing: Drawing) -> Iterator[tuple[Box, str, str]]:
    """Box, branch and name of each step."""
    for box in drawing.usable:
        for branch, name in drawing.outputs(box).items():
            yield box, branch, name


def _sinks(drawing: Drawing) -> list[Box]:
    """The sinks that have rows, in the order in which they were drawn."""
    usable = {each.id for each in drawing.usable}
    return [each for each in drawing.boxes if each.kind == "sink" and each.id in usable]


def _branch_condition(box: Box, branch: str) -> str:
    """When a row takes a branch: the first one whose condition holds."""
    parts: list[str] = []
    for name, condition in box.branches:
        if name == branch:
            return " AND ".join([*parts, f"coalesce({condition}, false)"])
        parts.append(f"NOT coalesce({condition}, false)")
    return " AND ".join(parts)


# SQL


def _sql(drawing: Drawing) -> Text:
    out, problems, frames = _Lines(), list(drawing.problems), list[tuple[str, str]]()
    sinks = _sinks(drawing)
    for extra in sinks[1:]:
        problems.append(Problem(extra.id, "an SQL text has one result: choose PySpark for several sinks"))
    for box, branch, name in _steps(drawing):
        frames.append((name, box.id))
        value = _SQL[box.kind](drawing, box, branch)
        if value != f"SELECT * FROM {quoted(name)}":
            # A source without a watermark that is called like its stream needs no step.
            out.add(f"{'), ' if out.lines else 'WITH '}{quoted(name)} AS (", box.id)
            out.add("\n".join("  " + line for line in value.split("\n")), box.id)
    if out.lines:
        out.add(")")
    # Without a sink there is no query yet: the steps are shown, to be read.
    if sinks:
        out.add(f"SELECT * FROM {quoted(_names(drawing, sinks[0])[0])}", sinks[0].id)
    return Text(SQL, "\n".join(out.lines), tuple(out.boxes), tuple(each.name for each in sinks[:1]), tuple(problems), tuple(frames))


def _sql_source(drawing: Drawing, box: Box, branch: str) -> str:
    watermark = f"\nWATERMARK {box.text('time')} DELAY OF INTERVAL {_interval(box.text('delay'))}" if box.text("time") else ""
    return f"SELECT * FROM {quoted(box.text('stream'))}{watermark}"


def _interval(text: str) -> str:
    """``10 minutes`` as SQL's interval takes it."""
    found = re.fullmatch(r"(\d+)\s*(\w+)", text)
    return f"{found[1]} {found[2].upper()}" if found else _literal(text)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _sql_filter(drawing: Drawing, box: Box, branch: str) -> str:
    return f"SELECT * FROM {quoted(_names(drawing, box)[0])}\nWHERE {box.text('condition')}"


def _sql_select(drawing: Drawing, box: Box, branch: str) -> str:
    return "SELECT\n  " + ",\n  ".join(box.items("columns")) + f"\nFROM {quoted(_names(drawing, box)[0])}"


def _window_sql(box: Box) -> str | None:
    kind, time = box.text("window") or "none", box.text("time")
    if kind == "none":
        return None
    if kind == "session":
        return f"session_window({time}, {_literal(box.text('size'))})"
    slide = f", {_literal(box.text('slide'))}" if kind == "sliding" else ""
    return f"window({time}, {_literal(box.text('size'))}{slide})"


def _sql_aggregate(drawing: Drawing, box: Box, branch: str) -> str:
    window, keys = _window_sql(box), box.items("keys")
    shown = [*([f"{window} AS {window.partition('(')[0]}"] if window else []), *keys, *box.items("functions")]
    grouped = [*([window] if window else []), *(_ALIAS.sub("", each) for each in keys)]
    group = "\nGROUP BY\n  " + ",\n  ".join(grouped) if grouped else ""
    return "SELECT\n  " + ",\n  ".join(shown) + f"\nFROM {quoted(_names(drawing, box)[0])}{group}"


def _sql_join(drawing: Drawing, box: Box, branch: str) -> str:
    left, right = map(quoted, _names(drawing, box))
    on = f"ON {box.text('condition')}" if box.text("condition") else f"USING ({', '.join(map(quoted, box.items('keys')))})"
    columns = ", ".join(box.items("columns")) or "*"
    return f"SELECT {columns}\nFROM {left} AS l {_SQL_JOINS[box.text('kind') or 'inner']} {right} AS r\n{on}"


def _sql_split(drawing: Drawing, box: Box, branch: str) -> str:
    return f"SELECT * FROM {quoted(_names(drawing, box)[0])}\nWHERE {_branch_condition(box, branch)}"


def _sql_union(drawing: Drawing, box: Box, branch: str) -> str:
    return "\nUNION ALL\n".join(f"SELECT * FROM {quoted(each)}" for each in _names(drawing, box))


_Step = Callable[[Drawing, Box, str], str]
_SQL: dict[str, _Step] = {
    "source": _sql_source,
    "filter": _sql_filter,
    "select": _sql_select,
    "aggregate": _sql_aggregate,
    "join": _sql_join,
    "split": _sql_split,
    "union": _sql_union,
}


# PySpark


def _pyspark(drawing: Drawing) -> Text:
    out, frames = _Lines(), list[tuple[str, str]]()
    for box, branch, name in _steps(drawing):
        value = _PYSPARK[box.kind](drawing, box, branch)
        if value != name:
            # A source without a watermark that is called like its stream needs no line.
            out.add(f"{name} = {value}", box.id)
        frames.append((name, box.id))
    sinks = _sinks(drawing)
    if len(sinks) == 1:
        out.add(f"result = {_names(drawing, sinks[0])[0]}", sinks[0].id)
    elif sinks:
        out.add("result = {")
        for each in sinks:
            out.add(f"    {_string(each.name)}: {_names(drawing, each)[0]},", each.id)
        out.add("}")
    names = tuple(each.name for each in sinks)
    problems = list(drawing.problems)
    problems += [Problem(each.id, "another sink has this name") for at, each in enumerate(sinks) if each.name in names[:at]]
    return Text(PYSPARK, "\n".join(out.lines), tuple(out.boxes), names, tuple(problems), tuple(frames))


def _string(text: str) -> str:
    """A text as Python writes it, on one line."""
    return json.dumps(text, ensure_ascii=False)


def _strings(texts: list[str]) -> str:
    if len(texts) < 3:
        return ", ".join(map(_string, texts))
    return "\n    " + ",\n    ".join(map(_string, texts)) + ",\n"


def _py_source(drawing: Drawing, box: Box, branch: str) -> str:
    stream = box.text("stream")
    rows = stream if is_name(stream) else f"spark.table({_string(quoted(stream))})"
    return rows if not box.text("time") else f"{rows}.withWatermark({_string(box.text('time'))}, {_string(box.text('delay'))})"


def _py_filter(drawing: Drawing, box: Box, branch: str) -> str:
    return f"{_names(drawing, box)[0]}.filter({_string(box.text('condition'))})"


def _py_select(drawing: Drawing, box: Box, branch: str) -> str:
    return f"{_names(drawing, box)[0]}.selectExpr({_strings(box.items('columns'))})"


def _py_aggregate(drawing: Drawing, box: Box, branch: str) -> str:
    kind, time, size = box.text("window") or "none", _string(box.text("time")), _string(box.text("size"))
    keys = [f"F.expr({_string(each)})" if not is_name(each) else _string(each) for each in box.items("keys")]
    if kind == "session":
        keys.insert(0, f"F.session_window({time}, {size})")
    elif kind != "none":
        slide = f", {_string(box.text('slide'))}" if kind == "sliding" else ""
        keys.insert(0, f"F.window({time}, {size}{slide})")
    functions = [f"F.expr({_string(each)})" for each in box.items("functions")]
    called = ", ".join(functions) if len(functions) < 3 else "\n    " + ",\n    ".join(functions) + ",\n"
    return f"{_names(drawing, box)[0]}.groupBy({', '.join(keys)}).agg({called})"


def _py_join(drawing: Drawing, box: Box, branch: str) -> str:
    left, right = _names(drawing, box)
    kind = box.text("kind") or "inner"
    how = _string(_PYSPARK_JOINS.get(kind, kind))
    on = f"F.expr({_string(box.text('condition'))})" if box.text("condition") else f"[{', '.join(map(_string, box.items('keys')))}]"
    columns = f".selectExpr({_strings(box.items('columns'))})" if box.items("columns") else ""
    return f'{left}.alias("l").join({right}.alias("r"), {on}, {how}){columns}'


def _py_split(drawing: Drawing, box: Box, branch: str) -> str:
    return f"{_names(drawing, box)[0]}.filter({_string(_branch_condition(box, branch))})"


def _py_union(drawing: Drawing, box: Box, branch: str) -> str:
    first, *more = _names(drawing, box)
    return first + "".join(f".unionAll({each})" for each in more)


_PYSPARK: dict[str, _Step] = {
    "source": _py_source,
    "filter": _py_filter,
    "select": _py_select,
    "aggregate": _py_aggregate,
    "join": _py_join,
    "split": _py_split,
    "union": _py_union,
}
