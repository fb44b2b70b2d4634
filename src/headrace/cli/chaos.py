"""`headrace chaos`: faults by a seed against your own query, compared with Spark's batch answer."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from headrace.errors import QueryError


def chaos(
    query: str = typer.Argument("", help="A program that starts one query: FILE.py. Or a function of streams: FILE.py:NAME, MODULE:NAME."),
    faults: int = typer.Option(20, min=1, help="The number of faults."),
    seed: int = typer.Option(0, min=0, help="The same seed gives the same faults."),
    master: str = typer.Option("local-cluster[3,1,1024]", help="Spark's master. A local[...] one has no executors to lose."),
    option: list[str] = typer.Option([], metavar="NAME=VALUE", help="An option of the query, such as headrace.replicas=1."),
    conf: list[str] = typer.Option([], metavar="NAME=VALUE", help="A setting of Spark."),
    kind: list[str] = typer.Option([], metavar="KIND", help="Only faults of this kind; may be repeated. --list shows all."),
    given: list[str] = typer.Option(
        [], "--input", metavar="FOLDER", help="For a function: a folder with the rows of one argument; may be repeated."
    ),
    schema: list[str] = typer.Option([], metavar="COLUMNS", help="For a function: the columns of an input: 'src string, seconds long'."),
    mode: str = typer.Option("append", help="For a function: the output mode, append, update or complete."),
    keys: list[str] = typer.Option(
        [], metavar="[SINK=]COLUMN,...", help="The columns that identify a result in update mode, if they are not known."
    ),
    due: list[str] = typer.Option(
        [], metavar="[SINK=]EXPRESSION", help="The event time of a result in append mode, if no window says it."
    ),
    rows: int = typer.Option(1000, min=1, help="The most rows in a batch."),
    order_by: str = typer.Option("", help="Put the rows in the order of this column; by default in that of the files."),
    expect: str = typer.Option("equal", help="What must come out: equal, at-least-once or counted-gap."),
    judge: str = typer.Option("each", help="When results are compared: after each fault, or at the end."),
    seconds: float = typer.Option(0.0, min=0.0, help="Begin no new fault after this time; 0: no limit."),
    out: Path = typer.Option(Path("chaos-out"), help="The folder for the log, the JSON and the report."),
    keep: bool = typer.Option(False, help="Keep the query's files. They are always kept after a failure."),
    mutate: str = typer.Option("", hidden=True, help="lose or double: corrupt the results on purpose; the campaign must find it."),
    show_kinds: bool = typer.Option(False, "--list", help="List the kinds of fault and exit."),
) -> None:
    """Kill, hang and damage parts of your running query by a seed, and compare what it delivers with Spark's batch answer."""
    from headrace.chaos.campaign import Rules
    from headrace.chaos.judge import Expectation
    from headrace.chaos.mutations import MUTATIONS
    from headrace.chaos.plan import KINDS
    from headrace.chaos.rig import Setup
    from headrace.chaos.run import Request, run

    if show_kinds:
        for name, what in KINDS.items():
            typer.echo(f"{name:<26}{what}")
        return
    if not query:
        raise QueryError(where="chaos", wanted="FILE.py, FILE.py:FUNCTION or MODULE:FUNCTION", found="none")
    if expect not in set(Expectation):
        raise QueryError(where="--expect", wanted=", ".join(Expectation), found=expect)
    if judge not in ("each", "end"):
        raise QueryError(where="--judge", wanted="each or end", found=judge)
    if mutate and mutate not in MUTATIONS:
        raise QueryError(where="--mutate", wanted=", ".join(MUTATIONS), found=mutate)
    target = {"text": query, "inputs": tuple(given), "schemas": tuple(schema), "mode": mode}
    by_sink = {name: columns.split(",") for name, columns in _named(keys).items()}
    setup = Setup(target, master, _pairs("--conf", conf), _pairs("--option", option), by_sink, _named(due))
    rules = Rules(Expectation(expect), judge == "each", rows, order_by, mutate)
    raise typer.Exit(run(Request(setup, rules, seed, faults, tuple(kind), seconds, out, keep), Console()))


def _pairs(where: str, given: list[str]) -> dict[str, str]:
    wrong = [each for each in given if "=" not in each]
    if wrong:
        raise QueryError(where=where, wanted="NAME=VALUE", found=wrong[0])
    return dict(each.split("=", 1) for each in given)


def _named(given: list[str]) -> dict[str, str]:
    """By sink; the name "" stands for all sinks.

    >>> _named(["ts", "pairs=ts_left"])
    {'': 'ts', 'pairs': 'ts_left'}
    """
    split = [each.rpartition("=") if "=" not in each else each.partition("=") for each in given]
    return {name: value for name, _, value in split}
