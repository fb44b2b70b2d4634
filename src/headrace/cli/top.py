"""`headrace top`: a live view of a running query for the terminal, through its control endpoint."""

from __future__ import annotations

import json
import sys
import time

import typer
from rich.console import Console
from rich.live import Live

from headrace.cli.keys import pressed, unbuffered
from headrace.cli.top_view import Seen, view
from headrace.errors import QueryError
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.endpoint import ask

LOOK_S = 0.1
"""How often to look whether a key was pressed."""
_log = logger(__name__)


def top(
    checkpoint: str = typer.Argument(help="The checkpointLocation of the query.", metavar="CHECKPOINT"),
    seconds: float = typer.Option(1.0, min=0.1, help="The time from one look at the query to the next."),
    once: bool = typer.Option(False, "--once", help="Print one view and exit."),
    as_json: bool = typer.Option(False, "--json", help="With --once: print what the view is made of, as JSON."),
) -> None:
    """Watch a running query: rates, latency, backlog, state, instances and the last changes. q or Ctrl-C leaves."""
    found = Checkpoint.existing(checkpoint)
    seen = Seen(str(found.location))
    console = Console()
    seen.look(ask(found, {"do": "status"}), time.time())
    try:
        seen.recall(ask(found, {"do": "decisions"})["decisions"])
    except QueryError as without:
        # Only elastic queries and those that shed have a log.
        _log.debug("no decisions are shown: %s", without)
    if as_json:
        typer.echo(json.dumps(seen.answer))
        return
    if once or not (sys.stdin.isatty() and console.is_terminal):
        console.print(view(seen, console.width, console.height, time.time(), leaves=False))
        return
    with unbuffered(sys.stdin), Live(console=console, screen=True, auto_refresh=False) as live:
        last_s = time.monotonic()
        while True:
            live.update(view(seen, console.width, console.height, time.time()), refresh=True)
            while time.monotonic() < last_s + seconds:
                if pressed(sys.stdin, LOOK_S) in ("q", "Q", "\x1b"):
                    return
            last_s = time.monotonic()
            try:
                seen.look(ask(found, {"do": "status"}), time.time())
            except QueryError as gone:
                # The query may come back: its program is restarted on the same checkpoint.
                seen.missing = gone.found or str(gone)
