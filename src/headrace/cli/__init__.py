"""The `headrace` command. Each command has its own file; this one lists them and turns errors into messages.

To add a command, write a function with typer annotations in a file of its own, or a group as `app`, and list it below. Its module is
imported when the command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

import headrace
from headrace.cli.lazy import Lazy, group_of
from headrace.errors import HeadraceError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

COMMANDS = {
    "demo": Lazy("Watch a query follow its load, checked against Spark.", "demo"),
    "top": Lazy("Watch a running query: rates, latency, state, instances.", "top"),
    "dashboard": Lazy("Open the monitor for queries that run or have ended.", "dashboard"),
    "report": Lazy("Write what a query did as one HTML page.", "report"),
    "ctl": Lazy("Change a running query: its instances and their slots.", "ctl"),
    "state": Lazy("Show and check a checkpoint, without Spark.", "state"),
    "migrate": Lazy("Carry a query over from plain Spark, with its state.", "migrate"),
    "plan": Lazy("Print and draw the plan of a program's queries.", "plan"),
    "chaos": Lazy("Test your own query with faults, against Spark's answer.", "chaos"),
    "cluster": Lazy("Start and stop a Spark cluster on this machine.", "cluster"),
    "bench": Lazy("Compare Headrace with Spark's own state stores.", "bench", "CONTEXT"),
    "simulate": Lazy("Run figures of the papers on simulated machines.", "simulate"),
    "version": Lazy("Print the versions that matter in a bug report.", "version"),
}

app = typer.Typer(
    name="headrace",
    cls=group_of(COMMANDS),
    help="Elastic, fault-tolerant, stateful streaming on Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True, callback=_version),
) -> None:
    # The callback of the option does the work, before typer asks for a command.
    pass


def run(application: typer.Typer, args: Sequence[str] | None = None) -> int:
    """Run `application` on `args` (by default the process's own) and return the exit code."""
    try:
        application(args=None if args is None else list(args), prog_name="headrace")
    except HeadraceError as error:
        _print(error)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _print(error: HeadraceError) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if os.environ.get("HEADRACE_TRACEBACK") == "1":
        console.print_exception()
    # A Text, not a string: rich would take brackets in a message for markup.
    console.print(Text(f"error: {error}", style="red"), soft_wrap=not console.is_terminal)


def main() -> None:
    """The entry point of the `headrace` command."""
    sys.exit(run(app))
