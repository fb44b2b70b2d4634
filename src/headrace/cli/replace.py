"""`headrace ctl replace CHECKPOINT FILE.py`: let a running query take the plan of a changed program."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from headrace.errors import QueryError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.endpoint import ask

LOOK_S = 0.1
AWAY_SECONDS_MAX = 600
"""How long the query may have no control endpoint, while the new plan starts and reads history."""


def replace(
    checkpoint: str = typer.Argument(help="The checkpointLocation of the query.", metavar="CHECKPOINT"),
    file: Path = typer.Argument(help="A Python program that builds and starts the changed query. The query's own process runs it."),
    backfill: bool = typer.Option(False, "--backfill", help="Compute new state from all rows that the sources have had."),
    rename: list[str] = typer.Option([], "--rename", metavar="OLD=NEW", help="A column's new name. May be given several times."),
    query: str | None = typer.Option(None, "--query", help="The queryName of the query, if the program has several."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be kept, changed, backfilled and dropped, and change nothing."),
) -> None:
    """Replace the query by that of a changed program, between two batches, without losing state."""
    from headrace.api.replacement import Replacement

    found = Checkpoint.existing(checkpoint)
    request = {"do": "replace", "file": str(file.absolute()), "backfill": backfill, "query": query, "dry_run": dry_run}
    answer = ask(found, {**request, "rename": _renamed(rename)})
    if answer.get("running"):
        answer = _outcome(found)
    if "failed" in answer:
        raise QueryError(answer["failed"])
    typer.echo(str(Replacement.from_json(answer["replaced"])))


def _outcome(checkpoint: Checkpoint) -> dict[str, Any]:
    """Wait for the end of the change. Meanwhile the query stops, and another one starts."""
    seen_s = time.monotonic()
    while True:
        try:
            answer = ask(checkpoint, {"do": "replaced"})
        except QueryError:
            if time.monotonic() - seen_s > AWAY_SECONDS_MAX:
                raise
        else:
            if not answer["running"]:
                return answer
            seen_s = time.monotonic()
        time.sleep(LOOK_S)


def _renamed(given: list[str]) -> dict[str, str]:
    """
    >>> _renamed(["src=caller"])
    {'src': 'caller'}
    """
    for each in given:
        if each.count("=") != 1 or each.startswith("=") or each.endswith("="):
            raise QueryError(where="--rename", wanted="old=new", found=repr(each))
    return dict(each.split("=") for each in given)
