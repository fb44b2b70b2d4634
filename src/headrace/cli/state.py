"""`headrace state`: shows and checks a checkpoint, without Spark, also while its query runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.lazy import made
from headrace.control.wording import counted, size_text
from headrace.errors import CheckpointError, CorruptStateError, HeadraceError, VersionNotFoundError
from headrace.ids import StoreId, Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.export import export
from headrace.runtime.inspection import pinned, state_rows, store_about
from headrace.runtime.verification import verify
from headrace.state.manifest import Manifest
from headrace.state.run import RunRef
from headrace.state.sequence import run_version
from headrace.state.slots import shown

EXIT_BROKEN = 1
WIDE = 120
PIPE_WIDTH = 200
"""The width of output to a file or a pipe: wide enough for every table."""

app = made(help="Show and check a checkpoint, without Spark; its query may be running.", no_args_is_help=True)

LOCATION = typer.Argument(help="The query's checkpointLocation.", metavar="CHECKPOINT")
VERSION = typer.Option(None, "--version", "-v", min=0, help="The version; by default the newest.")


@app.command("versions")
def versions(checkpoint: str = LOCATION) -> None:
    """List the versions that are kept."""
    found = Checkpoint.existing(checkpoint)
    table = _table("version", "written", "watermark", "rows", "runs", "bytes", "instances", right=(0, 3, 4, 5, 6))
    for version in found.manifests.versions():
        try:
            manifest = found.manifests.read(version)
            written_s = found.store.written_s(found.manifests.key(version))
            if written_s is None:
                continue
            written = datetime.fromtimestamp(written_s, UTC)
        except VersionNotFoundError:
            # The running query has just removed this version.
            continue
        except CorruptStateError:
            table.add_row(str(version), Text("broken, see headrace state verify", "red"))
            continue
        runs = _runs(manifest)
        sizes = {ref.file: ref.bytes for ref in runs}
        rows, total = sum(ref.rows for ref in runs), sum(sizes.values())
        table.add_row(
            str(version),
            written.strftime("%H:%M:%S UTC" if _is_narrow() else "%Y-%m-%d %H:%M:%S UTC"),
            _watermark(manifest),
            f"{rows:,}",
            f"{len(sizes):,}",
            f"{total:,}",
            ", ".join(dict.fromkeys(str(r.instances) for r in manifest.routing.values())),
        )
    _print(table if table.row_count else "no version yet: the query has not finished a batch")


@app.command("gaps")
def gaps(checkpoint: str = LOCATION) -> None:
    """List state that was lost and skipped, under the guarantee gap."""
    table = _table("operator", "versions", "rows missing", "slots", right=(2,))
    for gap in Checkpoint.existing(checkpoint).gaps.read():
        rows = "unknown" if gap.rows is None else f"{gap.rows:,}"
        table.add_row(gap.operator, f"{gap.first} to {gap.last}", rows, ", ".join(shown(lo, hi) for lo, hi in gap.slots))
    _print(table if table.row_count else "no gaps")


@app.command("ls")
def ls(checkpoint: str = LOCATION, version: int | None = VERSION) -> None:
    """List the operators of a version, the columns of their state and their run files."""
    found = Checkpoint.existing(checkpoint)
    with pinned(found, _version(version)) as manifest:
        for store, state in manifest.stores.items():
            about = store_about(found, store)
            _print(Text.assemble((str(store), "bold"), f"  version {manifest.version}, watermark {_watermark(manifest)}"))
            _print(f"  keys    {', '.join(about.get('keys', [])) or 'none'}")
            window = about.get("kernel", {}).get("window")
            if window and window["size_us"]:
                _print(f"  window  {duration(window['size_us'])} every {duration(window['advance_us'])}")
            if about.get("aggregates"):
                _print(f"  values  {', '.join(about['aggregates'])}")
            _print(f"  layout  {', '.join(about.get('layout', []))}")
            _print(_run_lines(state.runs, manifest.version) if _is_narrow() else _run_table(state.runs, manifest.version))


@app.command("show")
def show(
    checkpoint: str = LOCATION,
    version: int | None = VERSION,
    limit: int = typer.Option(20, "--limit", "-n", min=1, help="The number of rows to print."),
    operator: str | None = typer.Option(None, help="The operator; not needed if there is one."),
    key: list[str] = typer.Option([], metavar="NAME=VALUE", help="Only rows with this key; may be given more than once."),
) -> None:
    """Print the merged state of an operator: one row per key (and pane).

    Keys have the names of the query. Values are what the operator keeps: of an average, its sum and its count.
    """
    found = Checkpoint.existing(checkpoint)
    with pinned(found, _version(version)) as manifest:
        chosen = _store(manifest, operator, found)
        total = 0
        kept: list[pa.RecordBatch] = []
        for rows in _matching(state_rows(found, manifest, chosen), key):
            missing = limit - sum(part.num_rows for part in kept)
            if missing > 0:
                kept.append(rows.slice(0, missing))
            total += rows.num_rows
        if not kept:
            _print(f"{chosen}, version {manifest.version}: no rows")
            return
        _print(_rows_table(kept))
        shown = sum(part.num_rows for part in kept)
        _print(f"{chosen}, version {manifest.version}: {shown:,} of {counted(total, 'row')}")


@app.command("verify")
def check(
    checkpoint: str = LOCATION, every: bool = typer.Option(False, "--all", help="Check all versions that are kept, not only the newest.")
) -> None:
    """Check that every file is intact, and that versions, routing and Spark's logs belong together. Exit with 1 if not."""
    found = Checkpoint.existing(checkpoint)
    kept = found.manifests.versions()
    if not kept:
        raise VersionNotFoundError(where=found.location, wanted="a version", found="none", hint="no batch has finished yet")
    chosen = kept if every else kept[-1:]
    result = verify(found, chosen)
    for line in result.broken:
        _print(Text.assemble(("broken  ", "red"), line))
    for line in result.notable:
        _print(Text.assemble(("note    ", "yellow"), line))
    which = f"version {chosen[0]}" if len(chosen) == 1 else f"versions {chosen[0]} to {chosen[-1]}"
    if result.broken:
        _print(f"{which}: {counted(result.files, 'file')} checked, {counted(len(result.broken), 'finding')}; a restart would be refused")
        raise typer.Exit(EXIT_BROKEN)
    _print(f"{which}: {counted(result.files, 'file')}, {counted(result.bytes, 'byte')} of state and output, all intact")


@app.command("export")
def export_(
    checkpoint: str = LOCATION,
    folder: Path = typer.Argument(help="A new or empty folder.", metavar="DIR"),
    version: int | None = VERSION,
) -> None:
    """Write the merged state of all operators to Parquet files, a folder for each store.

    Keys have the names of the query. Values are what the operator keeps: of an average, its sum and its count.
    """
    exported, stores = export(Checkpoint.existing(checkpoint), folder, _version(version))
    for each in stores:
        _print(f"{each.folder}: {counted(each.rows, 'row')} of {each.store}, version {exported}")


def _version(given: int | None) -> Version | None:
    return None if given is None else Version(given)


def _store(manifest: Manifest, wanted: str | None, checkpoint: Checkpoint) -> StoreId:
    names = {str(store): store for store in manifest.stores}
    if not names:
        raise CheckpointError("this query keeps no state", where=checkpoint.location)
    if wanted is None and len(names) == 1:
        return next(iter(names.values()))
    if wanted not in names:
        raise CheckpointError(
            where=checkpoint.location,
            wanted="an operator" if wanted is None else f"the operator {wanted!r}",
            found=f"the operators {', '.join(names)}",
            hint="name one with --operator",
        )
    return names[wanted]


def _matching(pieces: Iterator[pa.RecordBatch], wanted: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows whose columns, as text, have the wanted values."""
    for rows in pieces:
        keep = None
        for pair in wanted:
            name, equals, value = pair.partition("=")
            if not equals or name not in rows.schema.names:
                raise HeadraceError(
                    where=f"--key {pair}", wanted=f"NAME=VALUE, with a name of {', '.join(rows.schema.names)}", found=repr(pair)
                )
            same = pa.array([_cell(x) == value for x in rows.column(name).to_pylist()])
            keep = same if keep is None else pc.and_(keep, same)
        rows = rows if keep is None else rows.filter(keep)
        if rows.num_rows:
            yield rows


def _rows_table(parts: list[pa.RecordBatch]) -> Table:
    schema = parts[0].schema
    numbers = [
        at for at, f in enumerate(schema) if pa.types.is_integer(f.type) or pa.types.is_floating(f.type) or pa.types.is_decimal(f.type)
    ]
    table = _table(*schema.names, right=tuple(numbers))
    for rows in parts:
        for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            table.add_row(*(Text(_cell(value)) for value in values))
    return table


def _run_lines(refs: tuple[RunRef, ...], version: Version) -> str:
    """The runs in lines of less than 80 characters."""
    lines = []
    for ref in refs:
        age, rows = counted(version - run_version(ref.seq), "batch", "batches"), counted(ref.rows, "row")
        panes = "" if ref.sub_min is None or ref.sub_max is None else f"\n    panes {_moment(ref.sub_min)} to {_moment(ref.sub_max)}"
        lines.append(f"  {ref.file}\n    {rows}, {size_text(ref.bytes)}, slots {shown(ref.lo, ref.hi)}, {age} old{panes}")
    return "\n".join(lines)


def _run_table(refs: tuple[RunRef, ...], version: Version) -> Table:
    table = _table("run", "rows", "bytes", "slots", "age", "panes", right=(1, 2, 4))
    for ref in refs:
        age = counted(version - run_version(ref.seq), "batch", "batches")
        panes = "-" if ref.sub_min is None or ref.sub_max is None else f"{_moment(ref.sub_min)} to {_moment(ref.sub_max)}"
        table.add_row(ref.file, f"{ref.rows:,}", f"{ref.bytes:,}", shown(ref.lo, ref.hi), age, panes)
    return table


def _runs(manifest: Manifest) -> list[RunRef]:
    return [ref for state in manifest.stores.values() for ref in state.runs]


def _table(*names: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for at, name in enumerate(names):
        table.add_column(Text(name), justify="right" if at in right else "left", overflow="fold")
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ", timespec="microseconds")
        return re.sub(r"\.?0+$", "", text.removesuffix("+00:00")) if "." in text else text
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_cell(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_cell(v) for v in value) + "]"
    return str(value)


def _is_narrow() -> bool:
    """True for a terminal in which wide tables would be folded."""
    console = Console()
    return console.is_terminal and console.width < WIDE


def _watermark(manifest: Manifest) -> str:
    return _moment(manifest.watermark_ms * 1000) if manifest.watermark_nodes_ms else "-"


def duration(us: int) -> str:
    """A duration as text.

    >>> [duration(us) for us in (1_500, 20_000_000, 60_000_000, 5_400_000_000, 86_400_000_000)]
    ['1500 microseconds', '20 seconds', '1 minute', '90 minutes', '1 day']
    """
    for length, unit in ((86_400_000_000, "day"), (3_600_000_000, "hour"), (60_000_000, "minute"), (1_000_000, "second")):
        if us % length == 0:
            return f"{us // length} {unit}{'' if us == length else 's'}"
    return f"{us} microseconds"


def _moment(us: int) -> str:
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        # Rows without an event time have the greatest time.
        return "never"


def _print(what: Any) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(what, highlight=False, markup=False, soft_wrap=isinstance(what, str | Text))
