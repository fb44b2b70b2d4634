"""`headrace cluster`: a real Spark cluster on this machine, for trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from headrace.cli.lazy import made
from headrace.errors import ClusterError

if TYPE_CHECKING:
    from headrace.runtime.standalone import Cluster

app = made(no_args_is_help=True)

FOLDER = typer.Option(None, "--dir", help="The folder of the cluster, for logs and workers; by default a temporary one.")


@app.callback()
def cluster() -> None:
    """Start and stop a Spark master with workers on this machine, on the loopback address."""


@app.command("up")
def up(
    workers: int = typer.Option(2, min=1, max=64, help="The number of worker processes; each stands for a machine."),
    cores: int = typer.Option(1, min=1, max=256, help="Cores that each worker offers."),
    memory: str = typer.Option("2g", help="Memory that each worker offers."),
    port: int = typer.Option(7077, min=0, max=65535, help="The port of the master; 0 means any free one."),
    ui_port: int = typer.Option(8080, min=0, max=65535, help="The port of the master's web page; 0 means any free one."),
    folder: Path | None = FOLDER,
) -> None:
    """Start a master and workers, and wait until they are ready."""
    from headrace.runtime import standalone

    console = Console()
    with console.status("starting") as status:
        for found in standalone.up(folder or standalone.default_folder(), workers, cores, memory, port, ui_port):
            status.update(f"starting: {found.workers_ready()} of {workers} workers are there")
    typer.echo(f"master    {found.master}   (web page {found.page})")
    typer.echo(f"workers   {workers}, each with {cores} core{'s' if cores > 1 else ''} and {memory}")
    typer.echo(f"use it    SPARK_MASTER={found.master} python program.py")
    typer.echo(f"          or hr.session(master={found.master!r})")
    typer.echo(f"stop it   {found.down_command}")


@app.command("status")
def status(folder: Path | None = FOLDER) -> None:
    """Show the master, its workers and its applications."""
    found = _known(folder)
    ready = f"{found.workers_ready()} of {len(found.pids) - 1} workers"
    typer.echo(f"{found.master}: {ready}, each {found.cores} core{'s' if found.cores > 1 else ''}, {found.memory}")


@app.command("down")
def down(folder: Path | None = FOLDER) -> None:
    """Stop the cluster and its executors, and remove its folder."""
    from headrace.runtime import standalone

    found = _known(folder)
    standalone.down(found)
    typer.echo(f"{found.master} is down")


def _known(folder: Path | None) -> Cluster:
    from headrace.runtime import standalone

    where = folder or standalone.default_folder()
    found = standalone.known(where)
    if found is None:
        hint = f"start one: {standalone.up_command(where)}"
        raise ClusterError(where=str(where), wanted="a cluster that runs", found="none", hint=hint)
    return found
