"""`headrace plan`: the plans of a program's queries, without running them."""

from __future__ import annotations

from pathlib import Path

import typer


def plan(
    file: Path = typer.Argument(help="A Python program that builds and starts Headrace queries."),
    cost: bool = typer.Option(False, "--cost", help="Compare the three ways to divide the query into subqueries."),
    rate: float = typer.Option(10_000.0, min=0.0, help="Rows a second, for --cost."),
    nodes: int | None = typer.Option(None, min=1, help="The number of nodes, for --cost; by default the sum of all instances."),
    svg: Path | None = typer.Option(None, help="Draw the graph into this SVG file."),
    dot: Path | None = typer.Option(None, help="Write the graph for Graphviz into this file."),
) -> None:
    """Print and draw the plan of a program's queries. The program runs, but its queries are only planned, not started."""
    from headrace.api.programs import planned_by
    from headrace.compile.explain import rendered

    program = planned_by(file, "plan", printing=False)
    queries, failed = program.queries, program.failed
    for number, query in enumerate(queries):
        sinks = list(query.sinks)
        about = query.flow, query.routing, sinks, [f"to {sink}" for sink in sinks]
        typer.echo(f"# {query.name or f'query {number + 1}'}, {query.where}")
        typer.echo(rendered(*about, safety=query.safety))
        if cost:
            typer.echo("\n" + rendered(*about, mode="cost", rate=rate, nodes=nodes))
        for target, mode in ((svg, "svg"), (dot, "dot")):
            if target is not None:
                path = target if len(queries) == 1 else target.with_stem(f"{target.stem}-{number + 1}")
                path.write_text(rendered(*about, mode=mode))
                typer.echo(f"drawn: {path}")
    if failed:
        typer.echo(f"the program went on without results, and ended with {failed}", err=True)
