"""`headrace ctl`: change a running query from another terminal."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from headrace.cli.replace import replace
from headrace.control.governor import Entry, Outcome
from headrace.errors import QueryError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.endpoint import ask
from headrace.state.routing import Routing
from headrace.state.slots import shown

app = typer.Typer(no_args_is_help=True)

OPERATOR = typer.Option(None, "--operator", "-o", help="The operator; by default all of them.")
PROTOCOLS = "How state changes hands: auto, 'state recreation', 'window recreation', merge, buffering."
PROTOCOL = typer.Option(None, "--protocol", "-p", help=PROTOCOLS)
RANGES_SHOWN = 4
SLOTS_GIVEN = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")
LOCATION = typer.Argument(help="The checkpointLocation of the query.", metavar="CHECKPOINT")


@app.callback()
def ctl(context: typer.Context, checkpoint: str = LOCATION) -> None:
    """Change a running query: the number of its instances, and the slots that each owns."""
    context.obj = checkpoint


@app.command("rescale")
def rescale(
    context: typer.Context,
    instances: int = typer.Argument(help="The number of instances from the next batch on.", min=1, max=4096),
    operator: str | None = OPERATOR,
    protocol: str | None = PROTOCOL,
) -> None:
    """Change the number of instances of all operators, or of one."""
    _do(context, {"do": "rescale", "instances": instances, "operator": operator, "protocol": protocol})


@app.command("move")
def move(
    context: typer.Context,
    slots: str = typer.Argument(help="Slots and ranges of slots, both ends included: 7 or 0-99,200; 7.25-7.5 is a quarter of slot 7."),
    to: int = typer.Option(..., "--to", help="The instance that gets them.", min=0),
    operator: str | None = OPERATOR,
    protocol: str | None = PROTOCOL,
) -> None:
    """Assign slots to an instance."""
    _do(context, {"do": "move", "slots": parse_slots(slots), "to": to, "operator": operator, "protocol": protocol})


@app.command("spread")
def spread(
    context: typer.Context,
    slots: str = typer.Argument(help="Slots and ranges of slots, as for move; without any, spreading ends."),
    operator: str | None = OPERATOR,
) -> None:
    """Distribute the rows of hot slots over all instances; for time windows in append mode."""
    _do(context, {"do": "spread", "slots": [] if slots == "none" else parse_slots(slots), "operator": operator})


@app.command("rebalance")
def rebalance(context: typer.Context, operator: str | None = OPERATOR, protocol: str | None = PROTOCOL) -> None:
    """Assign the slots to instances anew, by their recent load."""
    _do(context, {"do": "rebalance", "operator": operator, "protocol": protocol})


@app.command("decommission")
def decommission(
    context: typer.Context, executor: str = typer.Argument(help="The id of an executor, or a host: all executors on it go.")
) -> None:
    """Let an executor go. It hands its state over first, so that nothing is computed again."""
    answer = ask(Checkpoint.existing(context.obj), {"do": "decommission", "executor": executor})
    typer.echo(f"handed over: {', '.join(answer['leaving'])}")
    _show(answer["routing"], answer["homes"])


@app.command("auto")
def auto(context: typer.Context, operator: str | None = OPERATOR) -> None:
    """Let the policy decide again about operators that were changed by hand."""
    _do(context, {"do": "auto", "operator": operator})


app.command("replace")(replace)


@app.command("decisions")
def decisions(
    context: typer.Context,
    every: bool = typer.Option(False, "--all", help="Show decisions that changed nothing, too."),
    as_json: bool = typer.Option(False, "--json", help="Print all decisions, each as a line of JSON."),
) -> None:
    """Show what the policy of the query has decided, and why."""
    found = ask(Checkpoint.existing(context.obj), {"do": "decisions"})["decisions"]
    if as_json:
        for each in found:
            typer.echo(json.dumps(each))
        return
    entries = [Entry.from_json(each) for each in found]
    shown = [entry for entry in entries if every or entry.outcome is not Outcome.STEADY]
    if shown:
        Console().print(decision_table(shown))
    if len(shown) < len(entries):
        last = max(entries, key=lambda entry: entry.last_s)
        typer.echo(f"{len(entries) - len(shown)} times nothing was to be done (--all shows them); at last: {last.why}")
    elif not shown:
        typer.echo("nothing was decided yet")


@app.command("status")
def status(context: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print the whole last progress as JSON.")) -> None:
    """Show the routing and the last batch."""
    answer = ask(Checkpoint.existing(context.obj), {"do": "status"})
    if as_json:
        typer.echo(json.dumps(answer["progress"], indent=2))
        return
    _show(answer["routing"], answer["homes"])
    progress = answer["progress"]
    if progress is None:
        typer.echo("no batch has ended yet")
        return
    ours = progress["headrace"]
    typer.echo(f"batch {ours['version']}: {ours['rows']:,} rows in {ours['batchMs']:,.0f} ms, {ours['rowsOut']:,} results")


def decision_table(entries: list[Entry]) -> Table:
    table = Table("when", "operator", "decision", "instances", "outcome", "times", "why", box=box.SIMPLE)
    for each in entries:
        count = str(each.instances) if each.instances == each.instances_before else f"{each.instances_before} -> {each.instances}"
        when = datetime.fromtimestamp(each.at_s).strftime("%H:%M:%S")
        table.add_row(when, each.operator or "", each.what, count, str(each.outcome), str(each.times), each.why)
    return table


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
    return found


def _do(context: typer.Context, request: dict[str, Any]) -> None:
    _show(ask(Checkpoint.existing(context.obj), request)["routing"])


def _show(routing: dict[str, Any], homes: dict[str, list[str]] | None = None) -> None:
    table = Table("operator", "epoch", "instance", "executor", "slots", "which", box=box.SIMPLE)
    for name, body in routing.items():
        each = Routing.from_json(body)
        for instance, ranges in enumerate(each.ranges):
            which = ", ".join(shown(lo, hi) for lo, hi in ranges[:RANGES_SHOWN])
            which += f" and {len(ranges) - RANGES_SHOWN} more" if len(ranges) > RANGES_SHOWN else ""
            first = (name, str(each.epoch)) if instance == 0 else ("", "")
            home = (homes or {}).get(name, [])[instance : instance + 1] or [""]
            table.add_row(*first, str(instance), *home, f"{sum(hi - lo for lo, hi in ranges):,}", which)
    Console().print(table)
