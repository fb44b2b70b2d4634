"""`headrace demo`: two lanes on a minute of calls, live, checked against Spark, with a report."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console


def demo(
    out: Path = typer.Option(Path("demo-out"), help="The folder for input, output, state and report; an earlier demo in it is replaced."),
    seconds: float = typer.Option(60.0, min=2.0, help="For how many seconds calls arrive."),
    seed: int = typer.Option(7, min=0, help="The same seed gives the same calls."),
    kafka: bool = typer.Option(False, "--kafka", help="Calls come from a topic of Kafka, and results go to another."),
    rate: float = typer.Option(200.0, min=20.0, max=2000.0, help="Calls per second, on average."),
    browser: bool = typer.Option(True, help="Open the monitor in a browser, where there is a display."),
) -> None:
    """Run one program on plain Spark and on Headrace, side by side, on calls whose rate rises and falls.

    On the way there is a hot key, and a driver is killed. At the end the results are compared with Spark's batch answer.
    """
    from headrace.demo.run import DemoOptions, run

    raise typer.Exit(run(DemoOptions(out, seconds, seed, rate, kafka, browser), Console()))
