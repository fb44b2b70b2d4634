"""`headrace simulate`: figures of the papers on simulated machines, next to the paper's values."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.errors import HeadraceError, QueryError

if TYPE_CHECKING:
    from headrace.report.page import Page
    from headrace.sim.scenario import Options, Result, Scenario

EXIT_VIOLATED = 1
REPLAY = "replay"
VIOLATIONS_SHOWN = 5


def simulate(
    scenario: Annotated[str, typer.Argument(help="The scenario, or replay; without a name, all are listed.")] = "",
    trace: Annotated[Path | None, typer.Argument(help="For replay: a query's checkpoint, or a file of its progress.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.", min=0)] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the scenario; can be repeated.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plots to this file: .html for all, .svg for the first.")] = None,
) -> None:
    """Run a scenario of the simulator, or replay a real query's progress through a policy (--set policy=rates --set max=8).

    Exits with 1 if a checker found a violation.
    """
    from headrace.sim import scenarios

    console = Console()
    if not scenario:
        if settings:
            raise QueryError(where="simulate", wanted="a scenario's name first", found=" ".join(settings))
        _list(console)
        return
    if plot is not None:
        _check(plot)
    if scenario == REPLAY:
        from headrace.cli.replay import replay_trace
        from headrace.report.page import Page

        drawn = replay_trace(console, trace, _pairs(settings or []))
        if plot is not None:
            _save(plot, Page("What would have happened", str(trace), f"{len(drawn) // 2} operators", good=True, plots=drawn))
        return
    if trace is not None:
        raise QueryError(where="simulate", wanted="a recorded progress for replay only", found=str(trace))
    chosen = scenarios.named(scenario)
    options = chosen.with_options(_pairs(settings or []))
    said = " ".join(f"{key}={value}" for key, value in options.items())
    console.print(f"[bold]{chosen.name}[/bold]  {escape(chosen.figure)}: {escape(chosen.claim)}", highlight=False, soft_wrap=True)
    console.print(f"seed {seed}  {escape(said)}", style="dim", highlight=False, soft_wrap=True)
    begun = time.perf_counter()
    with console.status("simulating"):
        result = chosen.run(options, seed)
    took_s = time.perf_counter() - begun
    _show(console, result, took_s)
    if plot is not None:
        _write(plot, chosen, options, seed, result)
        console.print(f"plot written to {escape(str(plot))}", style="dim", highlight=False, soft_wrap=True)
    if result.violations:
        raise typer.Exit(EXIT_VIOLATED)


def _check(plot: Path) -> None:
    """Check the name of the plot file before a long run, not after it."""
    if plot.suffix not in (".html", ".svg"):
        raise QueryError(where="--plot", wanted="a name that ends in .html or .svg", found=repr(str(plot)))
    if not plot.absolute().parent.is_dir():
        raise QueryError(where="--plot", wanted="a name in a folder that is there", found=repr(str(plot)))


def _list(console: Console) -> None:
    from headrace.sim import scenarios

    table = Table("scenario", "figure", "claim", box=None, pad_edge=False)
    for each in scenarios.all_scenarios().values():
        table.add_row(each.name, each.figure, escape(each.claim))
    console.print(table)


def _pairs(settings: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise QueryError(where="--set", wanted="KEY=VALUE", found=repr(text))
        pairs[key] = value
    return pairs


def _show(console: Console, result: Result, took_s: float) -> None:
    marks = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}
    table = Table("what", "paper", "seen", "agrees", box=box.SIMPLE)
    for claim in result.claims:
        table.add_row(escape(claim.what), escape(claim.paper), escape(claim.seen), marks[claim.holds])
    console.print(table)
    if result.rows:
        more = Table(*result.columns, box=box.SIMPLE)
        for row in result.rows:
            more.add_row(*(escape(cell) for cell in row))
        console.print(more)
    if result.note:
        console.print(escape(result.note), soft_wrap=True, highlight=False)
    times = f"{result.simulated_s / took_s:,.0f} times as fast as in reality"
    speed = f"simulated {result.simulated_s:,.0f} s of up to {result.nodes:,} machines in {took_s:.1f} s, {times}"
    console.print(speed, style="dim", highlight=False, soft_wrap=True)
    if not result.violations:
        if result.held:
            console.print(f"checkers: {result.held}", style="green", highlight=False, soft_wrap=True)
        return
    console.print(f"checkers found {len(result.violations)} violations:", style="red", highlight=False)
    for violation in result.violations[:VIOLATIONS_SHOWN]:
        line = f"  {violation.at_s:g} s, {violation.checker}: {escape(violation.what)}"
        console.print(line, style="red", highlight=False, soft_wrap=True)


def _write(path: Path, scenario: Scenario, options: Options, seed: int, result: Result) -> None:
    from headrace.report.page import Page

    tables = {
        "Claims": [(claim.what, f"paper: {claim.paper}; seen: {claim.seen}") for claim in result.claims],
        "Options": [("seed", str(seed)), *((key, str(value)) for key, value in options.items())],
    }
    verdict = f"{len(result.violations)} violations" if result.violations else f"checkers: {result.held or 'none looked'}"
    _save(path, Page(f"{scenario.figure}", scenario.claim, verdict, not result.violations, plots=result.plots, tables=tables))


def _save(path: Path, page: Page) -> None:
    """Write a page with all plots, or only the first plot."""
    from headrace.report.page import render
    from headrace.report.plots import svg

    if not page.plots:
        raise QueryError(where="--plot", wanted="a scenario with plots", found=page.title)
    try:
        path.write_text(svg(page.plots[0]) if path.suffix == ".svg" else render(page), encoding="utf-8")
    except OSError as error:
        raise HeadraceError(where=f"--plot {path}", wanted="a file that can be written", found=str(error)) from error
