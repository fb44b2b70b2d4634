"""`headrace dashboard CHECKPOINT...`: the monitor of queries that run or have ended, without Spark."""

from __future__ import annotations

import typer


def dashboard(
    checkpoints: list[str] = typer.Argument(help="The checkpointLocation of each query.", metavar="CHECKPOINT..."),
    host: str = typer.Option("127.0.0.1", help="The address to listen on. Others than the default can be reached from other machines."),
    port: int = typer.Option(0, min=0, max=65_535, help="The port to listen on; 0: any that is free."),
) -> None:
    """Serve the monitor for queries that run on this machine, or have ended. Ctrl-C ends it."""
    from headrace.dashboard.queries import Queries
    from headrace.dashboard.server import Server

    server = Server(Queries(checkpoints), host, port)
    typer.echo(f"the monitor is at {server.url}")
    server.run()
