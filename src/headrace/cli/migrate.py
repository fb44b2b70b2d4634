"""`headrace migrate`: moves a query over from plain Spark, with its state, so that it need not read its history again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.api.planning import Planned
    from headrace.runtime.migrate import Migration


def migrate(
    file: Path = typer.Argument(help="The Python program of the query. It runs, but its queries are only planned, not started."),
    old: str = typer.Argument(help="The checkpointLocation of the query on plain Spark. It is only read.", metavar="OLD"),
    new: str = typer.Argument(help="The checkpointLocation to make, for the query on Headrace.", metavar="NEW"),
    query: str | None = typer.Option(None, help="The queryName; needed if the program has several queries and none has OLD or NEW."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be carried over."),
) -> None:
    """Carry a stopped query over from a checkpoint of plain Spark: state, offsets and watermark."""
    from headrace.api.enabling import as_if_enabled
    from headrace.api.programs import planned_by
    from headrace.runtime.migrate import planned_migration

    with as_if_enabled():
        program = planned_by(file, "migrate", printing=False)
    chosen = _chosen(program.queries, query, old, new, file)
    plan = chosen.written.plan
    frame = plan.outputs[0].frame
    if frame is None:
        raise HeadraceError(where=chosen.where, wanted="a query of Spark's DataFrames", found="one of hr.stream, which Spark cannot run")
    found = planned_migration(plan, frame, old)
    rows = {str(store): count for store, count in (found.counted() if dry_run else found.write(new)).items()}
    _show(found, rows)
    typer.echo(f"nothing was written: this is a dry run for {new}" if dry_run else f"written: {new}")


def _chosen(queries: Sequence[Planned], name: str | None, old: str, new: str, file: Path) -> Planned:
    """The query that is meant: by its name, by its checkpoint, or the only one."""
    places = {str(Path(each).absolute()) for each in (old, new)}
    if name is not None:
        found = [each for each in queries if each.name == name]
    else:
        found = [each for each in queries if str(Path(str(each.options.get("checkpointLocation", ""))).absolute()) in places]
        found = found or (list(queries) if len(queries) == 1 else [])
    if len(found) != 1:
        names = ", ".join(f"{each.name or 'a query without a name'} ({each.where})" for each in queries)
        wanted = f"one query {name!r}" if name else f"one query with the checkpointLocation {old} or {new}"
        raise HeadraceError(where=str(file), wanted=wanted, found=names, hint="choose one with --query NAME")
    return found[0]


def _show(found: Migration, rows: dict[str, int]) -> None:
    moment = datetime.fromtimestamp(found.reached_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if found.reached_ms else "none"
    typer.echo(f"from {found.old}, batch {found.batch}, watermark {moment}")
    for part in found.parts:
        typer.echo(f"{part.op.id}: Spark's operator {part.state.operator} ({part.state.name}), {part.op.where}")
        for name in part.op.plan.operator.stores:
            store = f"{part.op.id}.{name}" if name else str(part.op.id)
            typer.echo(f"  {store}: {rows.get(store, 0):,} rows")
    for text, offset in found.offsets():
        typer.echo(f"source {text}\n  from {offset}")
