"""`headrace bench`: compares Headrace with Spark's own state stores."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from headrace.errors import HeadraceError

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Lets unknown options through: each benchmark has its own, which are read once its name is known."""

EXIT_NOT_EQUAL = 1


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The benchmark; without a name, all are listed with their options.")] = "",
    seconds: Annotated[float | None, typer.Option(help="Measured time per engine; usually 30.", min=0.1, show_default=False)] = None,
    turns: Annotated[int, typer.Option(help="The number of turns into which the time of an engine is divided.", min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file as well.")] = None,
    heap: Annotated[int, typer.Option(help="Heap of each engine's JVM in gigabytes; 0 means a third of the memory, at most 8.", min=0)] = 0,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The folder for checkpoints during the run.", exists=True, file_okay=False)
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A Spark setting for all engines; can be repeated.")] = None,
) -> None:
    """Run a benchmark: engines take turns, and their results are compared. The last line, RESULT, is for programs."""
    if not name:
        if context.args:
            raise HeadraceError(where="bench", wanted="a benchmark's name first", found=" ".join(context.args))
        _list()
        return
    from headrace.bench import machine
    from headrace.bench.run import BenchSettings, print_result, run_benchmark

    # On SIGTERM, clean up as after Ctrl-C: lanes are processes and folders.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    heap_gb, place = heap or machine.heap_gb_default(), str(directory) if directory else None
    settings = BenchSettings(seconds, turns, None, heap_gb, _settings(conf or []), place)
    line = run_benchmark(name, context.args, settings)
    if json_file is not None:
        json_file.write_text(json.dumps(line, indent=2) + "\n", encoding="utf-8")
    print_result(line)
    if not line["equal"]:
        raise typer.Exit(EXIT_NOT_EQUAL)


def _list() -> None:
    from headrace.bench import discover

    # What is too long for a line goes on in the next.
    options = Column("options and their defaults", overflow="fold")
    table = Table("name", "what", options, box=None, pad_edge=False)
    for name in discover.names():
        benchmark = discover.load(name)
        given = (f"--{k.replace('_', '-')}" if v is False else f"--{k.replace('_', '-')} {v}" for k, v in benchmark.options.items())
        table.add_row(name, benchmark.line, " ".join(given))
    Console().print(table)


def _settings(pairs: list[str]) -> dict[str, str]:
    parts = [pair.partition("=") for pair in pairs]
    wrong = [pair for pair, (name, equals, _) in zip(pairs, parts, strict=True) if not (name and equals)]
    if wrong:
        raise HeadraceError(where="--conf", wanted="NAME=VALUE", found=repr(wrong[0]))
    return {name: value for name, _, value in parts}
