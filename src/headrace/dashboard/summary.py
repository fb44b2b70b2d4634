"""A query in one line: rate, latency, backlog, share delivered, state, and health in a sentence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.dashboard.queries import ENDED, FAILED, GONE, Shown
from headrace.runtime.history_files import Line

RECENT_S = 30.0
"""Rates are those of the last so many seconds."""
LATENCY_S = 300.0
"""Latency percentiles are those of the rows of the last so many seconds."""
BEHIND = 1.3
"""A query falls behind if its utilisation is above 1, or its backlog has grown by this factor."""
QUIET_S = 60.0
PARTS = 10


def summary(shown: Shown) -> dict[str, Any]:
    """What the overview says about a query."""
    points, state = shown.points, shown.state
    last = points[-1] if points else {}
    level, sentence = health(shown, state)
    rates = rate(points)
    return {
        "id": shown.id,
        "name": shown.name,
        "location": shown.location,
        "application": shown.about.get("application", {}).get("name"),
        "state": state,
        "level": level,
        "health": sentence,
        "version": last.get("v"),
        "atS": last.get("t"),
        "rate": rates[0],
        "rateOut": rates[1],
        "latency": percentiles(points),
        "batchMs": last.get("ms"),
        "backlog": last.get("wait"),
        "share": delivered(points),
        "busy": last.get("busy"),
        "instances": {name: each[0] for name, each in last.get("ops", {}).items()},
        "stateRows": sum(each[5] for each in last.get("ops", {}).values()) if last else None,
        "stateBytes": sum(each[6] for each in last.get("ops", {}).values()) if last else None,
    }


def recent(points: Sequence[Line], seconds: float) -> list[Line]:
    """The points of the last so many seconds before the newest one."""
    since = points[-1]["t"] - seconds if points else 0.0
    first = len(points)
    while first > 0 and points[first - 1]["t"] >= since:
        first -= 1
    return list(points[first:])


def rate(points: Sequence[Line]) -> tuple[float | None, float | None]:
    """Rows per second that came in, and results per second, lately."""
    seen = recent(points, RECENT_S)
    if not seen:
        return None, None
    before = points[-len(seen) - 1]["t"] if len(points) > len(seen) else seen[0]["b"]
    # Before a restart is no time in which rows came.
    span = max(seen[-1]["t"] - max(before, seen[0]["b"] - RECENT_S), 1e-3)
    return sum(each["rows"] for each in seen) / span, sum(each["out"] for each in seen) / span


def percentiles(points: Sequence[Line]) -> dict[str, float] | None:
    """Percentiles of the rows' latency from arrival, in milliseconds; None without rows.

    A batch says how old its oldest and its newest row can be. In between, rows are assumed to have come evenly.
    """
    seen = [each for each in recent(points, LATENCY_S) if each["rows"] and each.get("lat") is not None]
    if not seen:
        return None
    shares = (np.arange(PARTS) + 0.5) / PARTS
    ages = np.concatenate([each["latMin"] + (each["lat"] - each["latMin"]) * shares for each in seen])
    weights = np.repeat([each["rows"] / PARTS for each in seen], PARTS)
    order = np.argsort(ages)
    below = np.cumsum(weights[order]) / weights.sum()
    return {f"p{round(share * 100)}": round(float(ages[order][np.searchsorted(below, share - 1e-12)]), 1) for share in (0.5, 0.95, 0.99)}


def delivered(points: Sequence[Line]) -> float | None:
    """The share of recent rows that counted, by rows."""
    seen = recent(points, LATENCY_S)
    rows = sum(each["rows"] for each in seen)
    return sum(each["rows"] * each["share"] for each in seen) / rows if rows else (1.0 if seen else None)


def health(shown: Shown, state: str) -> tuple[str, str]:
    """How a query is: ``good``, ``warn`` or ``bad``, and why in a sentence."""
    points = shown.points
    if shown.is_removed:
        return "off", "its checkpoint's folder was removed: nothing of it is kept"
    if state == FAILED:
        return "bad", f"failed: {shown.error.splitlines()[0][:300]}"
    if state == GONE:
        return "bad", "its process is gone; a restart goes on from the last version"
    if state == ENDED:
        return "off", "ended" if points else "ended before its first batch, or without a history"
    if not points:
        return "warn", "no batch has ended yet"
    return _troubled(shown, points) or ("good", "keeps up" if points[-1].get("busy") is not None else "runs")


def _troubled(shown: Shown, points: Sequence[Line]) -> tuple[str, str] | None:
    last, seen = points[-1], recent(points, RECENT_S)
    lost = next((each for each in reversed(shown.events) if each["kind"] in ("lost", "gap", "store")), None)
    if lost is not None and time.time() - lost["t"] < QUIET_S:
        words = {"lost": "an executor was lost", "gap": "state was lost and skipped", "store": "the checkpoint's folder was away"}
        return "warn", f"{words[lost['kind']]} {max(0.0, time.time() - lost['t']):.0f} s ago"
    redundancy = next((each for each in reversed(shown.events) if each["kind"] == "redundancy"), None)
    if redundancy is not None and redundancy["missing"]:
        return "warn", f"{redundancy['missing']} copies of state are missing"
    waits = [each["wait"] for each in seen if each.get("wait") is not None]
    if len(waits) > 3 and waits[-1] > max(BEHIND * waits[0], waits[0] + last["rows"]):
        return "bad", f"falls behind: the backlog grew from {waits[0]:,} to {waits[-1]:,} rows in {seen[-1]['t'] - seen[0]['t']:.0f} s"
    if (last.get("busy") or 0) > 1:
        return "warn", f"at its limit: utilisation {last['busy']:.0%}"
    share = delivered(points)
    if share is not None and share < 0.9995:
        return "warn", f"{1 - share:.1%} of the rows are dropped or too late"
    return None
