"""The report of a query from the history in its checkpoint: one HTML page, also while the query runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.control.wording import counted
from headrace.report.page import Headline, Page
from headrace.report.plots import Plot, Series
from headrace.runtime.history_files import HistoryReader, Line, grouped

POINTS_MAX = 600
ROWS_MAX = 200
"""Rows of a table; the newest."""
FAULTS = ("lost", "rebuilt", "gap", "store", "redundancy", "history")


def history_page(reader: HistoryReader, location: str) -> Page:
    """The page of a query: figures, plots over time, changes, decisions, faults, and the plan."""
    about, points, events = reader.about(), reader.points(), reader.events()
    name = about.get("name") or location
    last = next((each for each in reversed(events) if each["kind"] in ("start", "end")), None)
    failed = last.get("error") if last is not None else None
    tables = {
        "Changes": [(_moment(each["t"]), _change(each)) for each in events if each["kind"] == "change"],
        "Decisions": [(_moment(each["t"]), _decision(each)) for each in events if each["kind"] == "decision"],
        "Faults": [(_moment(each["t"]), _fault(each)) for each in events if each["kind"] in FAULTS],
        "Starts and ends": [(_moment(each["t"]), _end(each)) for each in events if each["kind"] in ("start", "end")],
    }
    nodes = about.get("graph", {}).get("nodes", [])
    return Page(
        title=str(name),
        subtitle=f"{location}: {len(points):,} points from {_moment(points[0]['b'])} to {_moment(points[-1]['t'])}" if points else location,
        verdict=f"failed: {str(failed).splitlines()[0]}" if failed else "no failure" if last is not None else "no history",
        good=not failed,
        figures=_figures(points, events),
        plots=_plots(points, about),
        tables={heading: rows[-ROWS_MAX:] for heading, rows in tables.items() if rows},
        texts={f"{node['title']}, {node['runs']}": node["plan"] for node in nodes if node["plan"]},
    )


def _figures(points: Sequence[Line], events: Sequence[Line]) -> list[Headline]:
    if not points:
        return []
    rows, seconds = sum(each["rows"] for each in points), max(points[-1]["t"] - points[0]["b"], 1e-3)
    share = sum(each["rows"] * each["share"] for each in points) / rows if rows else 1.0
    changes = sum(each["kind"] == "change" for each in events)
    return [
        Headline(f"{rows:,}", "rows"),
        Headline(f"{rows / seconds:,.0f}/s", "on average"),
        Headline(f"{sum(each['out'] for each in points):,}", "results"),
        Headline(f"{sum(each['n'] for each in points):,}", "batches"),
        Headline(f"{max(each['ms'] for each in points) / 1000:,.1f} s", "longest batch"),
        Headline(f"{max(each['lat'] or 0 for each in points) / 1000:,.1f} s", "greatest latency"),
        Headline(f"{share:.2%}", "of the rows delivered"),
        Headline(f"{changes:,}", "changes of the routing" if changes != 1 else "change of the routing"),
    ]


def _plots(points: Sequence[Line], about: Mapping[str, Any]) -> list[Plot]:
    points = grouped(points, POINTS_MAX)
    if not points:
        return []
    begin = points[0]["b"]
    x = [each["t"] - begin for each in points]
    spans = [each["t"] - before for each, before in zip(points, [begin, *(each["t"] for each in points[:-1])], strict=True)]
    names = list(dict.fromkeys(name for each in points for name in each["ops"]))

    def of(name: str, at: int, scale: float = 1.0) -> list[float | None]:
        values = [each["ops"].get(name, [None] * 7)[at] for each in points]
        return [None if value is None else value / scale for value in values]

    rate = [each["rows"] / max(span, 1e-3) for each, span in zip(points, spans, strict=True)]
    out = [each["out"] / max(span, 1e-3) for each, span in zip(points, spans, strict=True)]
    limits = (about.get("policy") or {}).get("limits", {})
    ends = [x[0], x[-1]]
    made = [
        Plot("Rows and results", "per second", (Series("rows", x, rate), Series("results", x, out))),
        Plot("Latency and batch time", "s", (Series("oldest row", x, _seconds(points, "lat")), Series("batch", x, _seconds(points, "ms")))),
        Plot("Instances", "instances", tuple(Series(name, x, of(name, 0)) for name in names)),
        Plot("State", "MB", tuple(Series(name, x, of(name, 6, 1e6)) for name in names)),
    ]
    if any(each.get("busy") is not None for each in points):
        lines = (Series("query", x, [each.get("busy") for each in points]), *(Series(n, ends, [v, v]) for n, v in limits.items()))
        made.append(Plot("Utilisation", "of the time", lines, note="As the policy sees it; lines are its limits." if limits else ""))
    if any(each.get("wait") is not None for each in points):
        made.append(Plot("Backlog", "rows", (Series("rows", x, [each.get("wait") for each in points]),)))
    return made


def _seconds(points: Sequence[Line], name: str) -> list[float | None]:
    return [None if each.get(name) is None else each[name] / 1000 for each in points]


def _change(event: Line) -> str:
    before, now = event["instancesBefore"], event["instances"]
    count = f"{before} to {counted(now, 'instance')}" if before != now else ""
    moved = f"{counted(event['slotsMoved'], 'slot')} moved" if event["slotsMoved"] else ""
    return f"{event['operator']}: {', '.join(filter(None, (count, moved))) or event['protocol']}; {event['why']}"


def _decision(event: Line) -> str:
    return f"{event['operator'] or 'all'}: {event['what']} ({event['outcome']}): {event['why']}"


def _fault(event: Line) -> str:
    match event["kind"]:
        case "lost":
            words = "did not answer" if event["hung"] else "lost"
            return f"executor {', '.join(event['executors'])} {words}; recovered in {event['recoveredMs'] / 1000:.1f} s"
        case "rebuilt":
            return f"{counted(event['versions'], 'version')} computed again"
        case "gap":
            return f"state of {event['operator']} skipped, versions {event['first']} to {event['last']}"
        case "store":
            return f"waited {event['waitedMs'] / 1000:.1f} s for the checkpoint's folder"
        case "redundancy":
            if missing := event["missing"]:
                return f"{counted(missing, 'copy', 'copies')} of state missing"
            return f"copies complete after {event['lastedMs'] / 1000:.1f} s"
    return f"{counted(event.get('dropped', 0), 'batch', 'batches')} missing in this history"


def _end(event: Line) -> str:
    if event["kind"] == "start":
        return "started"
    return f"failed: {event['error']}" if event.get("error") else "stopped"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
