"""`headrace report CHECKPOINT`: what a query did, as one HTML page."""

from __future__ import annotations

from pathlib import Path

import typer

from headrace.errors import CheckpointError, HeadraceError


def report(
    checkpoint: str = typer.Argument(help="The checkpointLocation of the query.", metavar="CHECKPOINT"),
    out: Path = typer.Option(Path("report.html"), "--out", "-o", help="The file to write."),
) -> None:
    """Write a report of a query from the history in its checkpoint: figures, plots, changes, decisions, faults and the plan."""
    from headrace.report.history_page import history_page
    from headrace.report.page import render
    from headrace.runtime.checkpoint import Checkpoint
    from headrace.runtime.history_files import HistoryReader, history_folder

    found = Checkpoint.existing(checkpoint)
    reader = HistoryReader(history_folder(found))
    if not reader.is_there:
        hint = "queries write one unless headrace.history is false"
        raise CheckpointError(where=found.location, wanted="a history in the checkpoint", found="none", hint=hint)
    try:
        out.write_text(render(history_page(reader, found.location)), encoding="utf-8")
    except OSError as refused:
        raise HeadraceError(where=f"--out {out}", wanted="a file that can be written", found=str(refused)) from None
    typer.echo(f"report: {out}")
