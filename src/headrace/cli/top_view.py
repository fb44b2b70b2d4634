"""What `headrace top` shows, for a terminal of any size from 80 columns and 24 lines.

name, batch, health       rate, latency, backlog, state         recent rates as a line of bars
instances: a bar each, as long as the share of the batch that it worked
the last changes and decisions
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.control.wording import counted, size_change, size_text

BARS = "▁▂▃▄▅▆▇█"
HISTORY = 400
BUSY = ((0.85, "red"), (0.6, "yellow"), (0.0, "green"))
STALE_S = 30.0
"""A query without a batch for so long is called quiet."""
FIXED_LINES = 7
"""Lines of the view beside instances and changes."""
SIDE = 34
"""Columns of an instance's line beside its bar."""


@dataclass
class Seen:
    """What was seen of a query until now."""

    location: str
    answer: dict[str, Any] = field(default_factory=dict)
    """The last answer of the control endpoint."""
    missing: str = ""
    """Why the query does not answer; empty while it does."""
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Rows a second of the batches that were seen, oldest first."""
    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Changes and decisions, oldest first, each with its time."""
    version: int = -1
    at_s: float = 0.0

    def look(self, answer: dict[str, Any], at_s: float) -> None:
        """Take an answer of the control endpoint."""
        self.answer, self.missing = answer, ""
        ours = self.ours
        if ours is None or ours["version"] == self.version:
            return
        self.version, self.at_s = ours["version"], at_s
        self.rates.append(rate_of(ours))
        self.events.extend((at_s, change_text(each)) for each in ours["changes"])
        for each in ours["decisions"]:
            if each["outcome"] not in ("steady", "performed"):
                self.events.append((each["atS"], decision_text(each)))
        self.events.extend((at_s, loss_text(each)) for each in ours["interruptions"])

    def recall(self, decisions: list[dict[str, Any]]) -> None:
        """Take the decisions that were made before `top` began."""
        earlier = [(each["atS"], decision_text(each)) for each in decisions if each["outcome"] != "steady" and each["atS"] < self.at_s]
        self.events.extendleft(reversed(earlier))

    @property
    def ours(self) -> dict[str, Any] | None:
        """Headrace's part of the last progress; None before the first batch."""
        progress = self.answer.get("progress")
        return None if progress is None else progress["headrace"]


def rate_of(ours: dict[str, Any]) -> float:
    """Rows a second, from the begin of the batch before to that of this one."""
    latency = ours["latencyMs"]
    period_s = max(ours["batchMs"], latency["arrivalMax"] - latency["arrivalMin"]) / 1000
    return float(ours["rows"] / period_s) if period_s > 0 else 0.0


def change_text(change: dict[str, Any]) -> str:
    """A change of the routing, in one line.

    >>> change_text({"operator": "sum", "instancesBefore": 2, "instances": 4, "slotsMoved": 2048, "why": "rescale to 4 was asked for; ..."})
    'sum: scale out 2 → 4, 2,048 slots moved: rescale to 4 was asked for'
    """
    before, after = change["instancesBefore"], change["instances"]
    what = "slots moved" if before == after else size_change(before, after)
    moved = counted(change["slotsMoved"], "slot")
    return f"{change['operator']}: {what}, {moved} moved: {change['why'].split(';')[0]}"


def decision_text(decision: dict[str, Any]) -> str:
    """A decision of the policy, in one line.

    >>> of = {"operator": "sum", "what": "scale in", "instancesBefore": 2, "instances": 1, "why": "Utilisation 1.0% < 50%"}
    >>> decision_text({**of, "outcome": "performed"}), decision_text({**of, "outcome": "cooling down"})
    ('sum: scale in 2 → 1: Utilisation 1.0% < 50%', 'sum: scale in 2 → 1, cooling down: Utilisation 1.0% < 50%')
    """
    before, after = decision["instancesBefore"], decision["instances"]
    what = decision["what"] if before == after else size_change(before, after)
    outcome = "" if decision["outcome"] == "performed" else f", {decision['outcome']}"
    return f"{decision['operator'] or 'all'}: {what}{outcome}: {decision['why']}"


def loss_text(interruption: dict[str, Any]) -> str:
    """A loss of executors within a batch, in one line.

    >>> loss_text({"executors": ["3"], "hung": False, "afterMs": 412.0})
    'executor 3 was lost; the step ran again after 412 ms'
    """
    ids = interruption["executors"]
    who = f"executor{'s' if len(ids) > 1 else ''} {', '.join(ids)} {'were' if len(ids) > 1 else 'was'}"
    return f"{who} {'hung' if interruption['hung'] else 'lost'}; the step ran again after {interruption['afterMs']:,.0f} ms"


def sparkline(values: list[float], width: int) -> str:
    """Values as bars of eight heights; the highest is full.

    >>> sparkline([0, 1, 2, 4, 8], 4)
    '▂▃▅█'
    """
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(BARS[min(7, int(8 * each / top))] if top > 0 else BARS[0] for each in shown)


def view(seen: Seen, width: int, height: int, now_s: float, *, leaves: bool = True) -> RenderableType:
    """The whole view. With ``leaves``, it says how to leave it."""
    ours = seen.ours
    head = _head(seen, now_s)
    if ours is None:
        return Group(head, Text("no batch has ended yet"))
    instances = ours["instances"]
    changes = list(seen.events)[::-1]
    room = max(height - FIXED_LINES, 4)
    shown = max(2, min(len(instances), room - min(len(changes), max(3, room // 3)) - 1))
    left = max(0, room - shown - 1)
    parts: list[RenderableType] = [head, _figures(seen, ours), _history(seen, width), Text()]
    parts += [_instance(each, ours, width) for each in instances[:shown]]
    if len(instances) > shown:
        parts.append(Text(f"and {counted(len(instances) - shown, 'more instance')}", "dim"))
        left -= 1
    parts.append(Text())
    parts += [_event(at_s, what) for at_s, what in changes[: max(0, left)]] or [Text("no changes since top began", "dim")]
    if leaves:
        parts.append(Text("q or Ctrl-C leaves", "dim"))
    return Group(*parts)


def _head(seen: Seen, now_s: float) -> Text:
    progress = seen.answer.get("progress") or {}
    name = progress.get("name") or seen.location
    line = Text(str(name), "bold", no_wrap=True, overflow="ellipsis")
    if seen.missing:
        return line.append(f"  does not answer: {seen.missing}", "bold red")
    if seen.version >= 0:
        line.append(f"  batch {seen.version:,}", "dim")
        quiet_s = now_s - seen.at_s
        line.append(f"  quiet for {quiet_s:,.0f} s" if quiet_s > STALE_S else "  running", "yellow" if quiet_s > STALE_S else "green")
    return line


def _figures(seen: Seen, ours: dict[str, Any]) -> Table:
    backlog, latency = ours["backlog"], ours["latencyMs"]
    waiting = "none" if not backlog.get("rowsLeft") else counted(backlog["rowsLeft"], "row")
    size = sum({(i["operator"], i["instance"]): i["stateBytes"] for i in ours["instances"]}.values())
    keys = sum(each["numRowsTotal"] for each in seen.answer["progress"]["stateOperators"])
    pairs = {
        "rate": f"{counted(round(seen.rates[-1] if seen.rates else 0), 'row')}/s",
        "latency": f"{latency['arrivalMax'] / 1000:.2f} s at most",
        "batch": f"{ours['batchMs']:,.0f} ms",
        "left behind": "unknown" if backlog.get("rowsLeft") is None else waiting,
        "state": f"{size_text(size)}, {counted(keys, 'row')}",
        "delivered": f"{ours['shareDelivered']:.1%} of the rows",
    }
    table = Table.grid(padding=(0, 3), expand=False)
    items = [Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in pairs.items()]
    table.add_row(*items[:3])
    table.add_row(*items[3:])
    return table


def _history(seen: Seen, width: int) -> Text:
    label = "rows/s "
    return Text.assemble((label, "dim"), (sparkline(list(seen.rates), max(10, width - len(label) - 1)), "cyan"))


def _instance(each: dict[str, Any], ours: dict[str, Any], width: int) -> Text:
    """Name, bar of the share of the batch that the instance worked, rows and size of its state."""
    busy = min(1.0, each["wallSeconds"] * 1000 / ours["batchMs"]) if ours["batchMs"] else 0.0
    room = max(10, width - SIDE - 14)
    full = round(busy * room)
    style = next(style for limit, style in BUSY if busy >= limit)
    name = f"{each['operator']} {each['instance']}"
    return Text.assemble(
        (f"{name[:13]:<14}", ""),
        ("█" * full, style),
        ("░" * (room - full), "dim"),
        f" {busy:4.0%} {each['rows']:>9,} {'row ' if each['rows'] == 1 else 'rows'} {size_text(each['stateBytes']):>8}",
    )


def _event(at_s: float, what: str) -> Text:
    when = datetime.fromtimestamp(at_s).strftime("%H:%M:%S")
    return Text.assemble((f"{when}  ", "dim"), what, no_wrap=True, overflow="ellipsis")
