"""`headrace ctl`: change a running query from another terminal."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from headrace.cli.decisions import decision_table, last_line
from headrace.cli.lazy import made
from headrace.cli.replace import replace
from headrace.control.governor import Entry, Outcome
from headrace.control.wording import counted, size_text
from headrace.errors import QueryError
from headrace.ids import SLOTS
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.endpoint import ask
from headrace.state.routing import Routing
from headrace.state.slots import shown

LOCATION = typer.Argument(help="The checkpointLocation of the query.", metavar="CHECKPOINT")
OPERATOR = typer.Option(None, "--operator", "-o", help="The operator; by default all of them.")
PROTOCOLS = "How state changes hands: auto, 'state recreation', 'window recreation', merge, buffering."
PROTOCOL = typer.Option(None, "--protocol", "-p", help=PROTOCOLS)
RANGES_SHOWN = 4
SLOTS_GIVEN = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


class VerbFirst(TyperGroup):
    """Takes `ctl VERB CHECKPOINT ...`, and also the order of earlier versions, `ctl CHECKPOINT VERB ...`, with a notice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = self.list_commands(ctx)
        if len(args) > 1 and args[0] not in known and args[1] in known:
            print(f"note: the verb comes first now: headrace ctl {args[1]} {args[0]}", file=sys.stderr)
            args = [args[1], args[0], *args[2:]]
        return super().parse_args(ctx, args)


app = made(cls=VerbFirst, no_args_is_help=True)


@app.callback()
def ctl() -> None:
    """Change a running query: the number of its instances, and the slots that each owns."""


@app.command("rescale")
def rescale(
    checkpoint: str = LOCATION,
    instances: int = typer.Argument(help="The number of instances from the next batch on.", min=1, max=4096),
    operator: str | None = OPERATOR,
    protocol: str | None = PROTOCOL,
) -> None:
    """Change the number of instances of all operators, or of one."""
    _do(checkpoint, {"do": "rescale", "instances": instances, "operator": operator, "protocol": protocol})


@app.command("move")
def move(
    checkpoint: str = LOCATION,
    slots: str = typer.Argument(help="Slots and ranges of slots, both ends included: 7 or 0-99,200; 7.25-7.5 is a quarter of slot 7."),
    to: int = typer.Option(..., "--to", help="The instance that gets them.", min=0),
    operator: str | None = OPERATOR,
    protocol: str | None = PROTOCOL,
) -> None:
    """Assign slots to an instance."""
    _do(checkpoint, {"do": "move", "slots": parse_slots(slots), "to": to, "operator": operator, "protocol": protocol})


@app.command("spread")
def spread(
    checkpoint: str = LOCATION,
    slots: str = typer.Argument(help="Slots and ranges of slots, as for move; none ends spreading."),
    operator: str | None = OPERATOR,
) -> None:
    """Distribute the rows of hot slots over all instances. Time windows in append mode can do that."""
    _do(checkpoint, {"do": "spread", "slots": [] if slots == "none" else parse_slots(slots), "operator": operator})


@app.command("rebalance")
def rebalance(checkpoint: str = LOCATION, operator: str | None = OPERATOR, protocol: str | None = PROTOCOL) -> None:
    """Assign the slots to instances anew, by their recent load."""
    _do(checkpoint, {"do": "rebalance", "operator": operator, "protocol": protocol})


@app.command("decommission")
def decommission(
    checkpoint: str = LOCATION, executor: str = typer.Argument(help="The id of an executor, or a host: all executors on it go.")
) -> None:
    """Let an executor go. It hands its state over first, so that nothing is computed again."""
    answer = ask(Checkpoint.existing(checkpoint), {"do": "decommission", "executor": executor})
    typer.echo(f"handed over: {', '.join(answer['leaving'])}")
    _show(answer["routing"], answer["homes"])


@app.command("auto")
def auto(checkpoint: str = LOCATION, operator: str | None = OPERATOR) -> None:
    """Let the policy decide again after a change by hand."""
    ask(Checkpoint.existing(checkpoint), {"do": "auto", "operator": operator})
    typer.echo(f"the policy decides again about {operator or 'all operators'}")


app.command("replace")(replace)


@app.command("decisions")
def decisions(
    checkpoint: str = LOCATION,
    every: bool = typer.Option(False, "--all", help="Show decisions that changed nothing, too."),
    as_json: bool = typer.Option(False, "--json", help="Print all decisions, each as a line of JSON."),
) -> None:
    """Show what the policy of the query has decided, and why."""
    found = ask(Checkpoint.existing(checkpoint), {"do": "decisions"})["decisions"]
    if as_json:
        for each in found:
            typer.echo(json.dumps(each))
        return
    entries = [Entry.from_json(each) for each in found]
    shown = [entry for entry in entries if every or entry.outcome is not Outcome.STEADY]
    if shown:
        Console().print(decision_table(shown))
    if len(shown) < len(entries):
        Console().print(last_line(entries))
    elif not shown:
        typer.echo("nothing was decided yet")


@app.command("status")
def status(
    checkpoint: str = LOCATION, as_json: bool = typer.Option(False, "--json", help="Print the whole last progress as JSON.")
) -> None:
    """Show the routing and the last batch."""
    answer = ask(Checkpoint.existing(checkpoint), {"do": "status"})
    if as_json:
        typer.echo(json.dumps(answer["progress"], indent=2))
        return
    _show(answer["routing"], answer["homes"])
    progress = answer["progress"]
    if progress is None:
        typer.echo("no batch has ended yet")
        return
    ours = progress["headrace"]
    rows, results = counted(ours["rows"], "row"), counted(ours["rowsOut"], "result")
    typer.echo(f"batch {ours['version']}: {rows} in {ours['batchMs']:,.0f} ms, {results}")


def parse_slots(text: str) -> list[list[float]]:
    """Slots and ranges as pairs of a first slot and the one after the last.

    >>> parse_slots("7,0-99,7.25-7.5")
    [[7, 8], [0, 100], [7.25, 7.5]]
    """
    found: list[list[float]] = []
    for part in text.split(","):
        match = SLOTS_GIVEN.fullmatch(part.strip())
        if match is None:
            wanted = "slots such as 7 or 0-99,200, or a piece of one such as 7.25-7.5"
            raise QueryError(where="headrace ctl", wanted=wanted, found=repr(text))
        first, last = match.groups()
        if "." in part:
            found.append([float(first), float(last or first)])
        else:
            found.append([int(first), int(last or first) + 1])
        if found[-1][1] > SLOTS:
            raise QueryError(where="headrace ctl", wanted=f"slots from 0 to {SLOTS - 1}", found=repr(part.strip()))
    return found


def change_line(change: dict[str, Any]) -> str:
    """What a change did, in one line.

    >>> change_line({"operator": "sum", "instancesBefore": 2, "instances": 4, "slotsMoved": 2048, "waitedMs": 1480, "bytesFetched": 0})
    'sum: 2 → 4 instances, 2,048 slots moved, waited 1.5 s, nothing fetched'
    >>> change = {"instancesBefore": 1, "instances": 1, "slotsMoved": 1, "waitedMs": 0, "bytesFetched": 3_200_000, "fetchMs": 250}
    >>> change_line({"operator": "sum", **change})
    'sum: 1 instance, 1 slot moved, waited 0.0 s, 3.2 MB fetched in 0.2 s'
    """
    before, after, fetched = change["instancesBefore"], change["instances"], change["bytesFetched"]
    count = counted(after, "instance") if before == after else f"{before} → {counted(after, 'instance')}"
    brought = f"{size_text(fetched)} fetched in {change['fetchMs'] / 1000:.1f} s" if fetched else "nothing fetched"
    moved = counted(change["slotsMoved"], "slot")
    return f"{change['operator']}: {count}, {moved} moved, waited {change['waitedMs'] / 1000:.1f} s, {brought}"


def _do(checkpoint: str, request: dict[str, Any]) -> None:
    answer = ask(Checkpoint.existing(checkpoint), request)
    for change in answer["changes"]:
        typer.echo(change_line(change))
    if not answer["changes"]:
        typer.echo("nothing to change: the slots are assigned like this already")
    _show(answer["routing"], answer.get("homes"))


def _show(routing: dict[str, Any], homes: dict[str, list[str]] | None = None) -> None:
    at_home = any((homes or {}).values())
    table = Table("operator", "epoch", "instance", *(["executor"] if at_home else []), "slots", "which", box=box.SIMPLE, pad_edge=False)
    for name, body in routing.items():
        each = Routing.from_json(body)
        for instance, ranges in enumerate(each.ranges):
            which = ", ".join(shown(lo, hi) for lo, hi in ranges[:RANGES_SHOWN])
            which += f" and {len(ranges) - RANGES_SHOWN} more" if len(ranges) > RANGES_SHOWN else ""
            first = (name, str(each.epoch)) if instance == 0 else ("", "")
            home = ((homes or {}).get(name, [])[instance : instance + 1] or [""]) if at_home else []
            table.add_row(*first, str(instance), *home, f"{sum(hi - lo for lo, hi in ranges):,}", which)
    Console().print(table)
