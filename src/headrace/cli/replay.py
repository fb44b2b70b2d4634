"""`headrace simulate replay TRACE`: what a policy would have decided for a query whose progress was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from headrace.cli.decisions import decision_table
from headrace.control.elastic import Elastic
from headrace.control.governor import Outcome
from headrace.control.observing import Batch
from headrace.control.wording import counted
from headrace.errors import QueryError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.history_files import HistoryReader, history_folder
from headrace.sim.replay import Replayed, batches_of, read_batches, replay

if TYPE_CHECKING:
    from headrace.report.plots import Plot

WHERE = "simulate replay"
MAKE: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda word: {"true": True, "false": False}[word.lower()],
}
"""By type: converts the text of a setting to its value."""


def replay_trace(console: Console, trace: Path | None, given: Mapping[str, str]) -> list[Plot]:
    """Replay a recorded progress and show the decisions. Returns the plots."""
    if trace is None:
        hint = "a checkpoint, or a file with json.dumps of each of query.recentProgress, a line each"
        raise QueryError(where=WHERE, wanted="a recorded progress", found="none", hint=hint)
    batches = _recorded(trace)
    if not batches:
        raise QueryError(where=f"{WHERE} {trace}", wanted="at least one batch", found="none")
    settings = Elastic(**elastic_settings(given))
    replayed = replay(batches, settings)
    _show(console, batches, replayed, settings)
    return plots(batches, replayed)


def _recorded(trace: Path) -> list[Batch]:
    """The batches in a file, or in the history of a checkpoint."""
    if trace.is_dir():
        return batches_of(HistoryReader(history_folder(Checkpoint.existing(str(trace)))).batches(), f"{WHERE} {trace}")
    try:
        lines = trace.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise QueryError(where=f"{WHERE} {trace}", wanted="a query's checkpoint, or a file of its progress", found=str(error)) from None
    return read_batches(lines)


def elastic_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Convert the settings of hr.Elastic from text.

    >>> elastic_settings({"policy": "rates", "max": "8", "target": "0.7", "dry_run": "true"})
    {'policy': 'rates', 'max': 8, 'target': 0.7, 'dry_run': True}
    """
    kinds = {field.name: str(field.type).partition(" | ")[0] for field in fields(Elastic)}
    unknown = [name for name in given if name not in kinds]
    if unknown:
        raise QueryError(where="--set", wanted=f"a setting of hr.Elastic: {', '.join(kinds)}", found=unknown[0])
    found = {}
    for name, word in given.items():
        try:
            found[name] = MAKE[kinds[name]](word)
        except (ValueError, KeyError):
            raise QueryError(where=f"--set {name}", wanted=f"a value of type {kinds[name]}", found=repr(word)) from None
    return found


def plots(batches: list[Batch], replayed: Replayed) -> list[Plot]:
    """Plots of the instances of each operator, recorded and simulated, and of the simulated utilisation."""
    from headrace.report.plots import Plot

    start_s = batches[0].begin_s
    found = []
    for at, operator in enumerate(each.operator for each in batches[-1].operators):
        was = [(batch.end_s - start_s, float(len(batch.operators[at].busy_s))) for batch in batches]
        seen = [(moment.at_s - start_s, moment) for moment in replayed.moments if operator in moment.instances]
        would = [(when, float(moment.instances[operator])) for when, moment in seen]
        loads = [(when, load) for when, moment in seen for load in moment.observation.operators if load.operator == operator]
        busy = [(when, float(load.cpu.mean())) for when, load in loads]
        lines = (("as it was", was), ("as it would have been", would))
        found.append(Plot(f"instances of {operator}", "instances", tuple(_series(name, points) for name, points in lines)))
        found.append(Plot(f"utilisation of {operator}", "of an instance", (_series("as it would have been", busy),)))
    return found


def _series(name: str, points: list[tuple[float, float]]) -> Any:
    from headrace.report.plots import Series

    return Series(name, [x for x, _ in points], [y for _, y in points])


def _show(console: Console, batches: list[Batch], replayed: Replayed, settings: Elastic) -> None:
    took_s = batches[-1].end_s - batches[0].begin_s
    console.print(f"[bold]replay[/bold]  {len(batches)} batches of {took_s:,.0f} s by {settings.policy}", highlight=False)
    shown = [entry for entry in replayed.log if entry.outcome is not Outcome.STEADY]
    if shown:
        console.print(decision_table(shown))
    quiet = sum(entry.times for entry in replayed.log if entry.outcome is Outcome.STEADY)
    last = max(replayed.log, key=lambda entry: entry.last_s, default=None)
    if last is not None:
        console.print(f"{counted(quiet, 'time')} nothing was to be done; at last: {escape(last.why)}", highlight=False, soft_wrap=True)
    else:
        console.print(f"too few batches to decide anything: a decision looks at {settings.period_s:g} s", highlight=False)
