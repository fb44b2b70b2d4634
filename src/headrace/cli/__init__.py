"""The `headrace` command. Each command has its own file; this one registers them and turns errors into messages.

To add a command, write a function with typer annotations in a file of its own and register it below. Its module is
imported at every start of the command line, so PySpark is imported inside the function, not at the top.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli import bench, chaos, cluster, ctl, dashboard, demo, plan, report, simulate, state, version
from headrace.errors import HeadraceError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="headrace",
    help="Elastic, fault-tolerant, stateful streaming on Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    # Without a callback, typer drops the name of a command that is the only one.
    pass


app.command("version")(version.version)
app.command("bench", context_settings=bench.CONTEXT)(bench.bench)
app.command("chaos")(chaos.chaos)
app.command("dashboard")(dashboard.dashboard)
app.command("demo")(demo.demo)
app.command("plan")(plan.plan)
app.command("report")(report.report)
app.command("simulate")(simulate.simulate)
app.add_typer(cluster.app, name="cluster")
app.add_typer(ctl.app, name="ctl")
app.add_typer(state.app, name="state")


def run(application: typer.Typer, args: Sequence[str] | None = None) -> int:
    """Run `application` on `args` (by default the process's own) and return the exit code."""
    try:
        application(args=None if args is None else list(args), prog_name="headrace")
    except HeadraceError as error:
        console = Console(stderr=True)
        if os.environ.get("HEADRACE_TRACEBACK") == "1":
            console.print_exception()
        # A Text, not a string: rich would take brackets in a message for markup.
        console.print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def main() -> None:
    """The entry point of the `headrace` command."""
    sys.exit(run(app))
