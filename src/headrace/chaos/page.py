"""The report of a campaign as a page: when each fault came, how long it took to the next right result, and what it cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.chaos.outcome import Outcome, Record
from headrace.chaos.plan import KINDS
from headrace.chaos.report import figures
from headrace.report.machine import machine
from headrace.report.page import Headline, Page
from headrace.report.plots import Plot, Series

GROUPS = {
    "executor": ("kill-executor", "kill-idle-executor"),
    "executor hangs": ("hang-executor",),
    "two executors": ("kill-two-executors",),
    "driver": ("kill-driver", "kill-driver-at-point", "kill-driver-and-executor"),
    "copies, store": ("damage-copies", "kill-workers", "store-away"),
    "changes only": ("change-routing",),
}
"""The lines of the timeline: kinds with the same colour."""


def verdict_text(records: Sequence[Record]) -> str:
    """One sentence."""
    done = [record for record in records if record.outcome is not Outcome.SKIPPED and record.kind != "end"]
    failed = sum(record.outcome.fails for record in records)
    if failed:
        lost, doubled, wrong = (sum(getattr(record, name) for record in records) for name in ("lost", "doubled", "wrong"))
        return f"{len(done)} faults, {failed} FAILED: {lost} rows lost, {doubled} doubled, {wrong} wrong"
    return f"{len(done)} faults: 0 rows lost, 0 rows doubled"


def page(records: Sequence[Record], about: Mapping[str, Any], batches: Sequence[Mapping[str, Any]], began_s: float) -> Page:
    """The page of a campaign."""
    times = [record.recovery_s for record in records if record.recovery_s is not None]
    failures = [record for record in records if record.outcome.fails]
    heads = [
        Headline(str(sum(record.lost for record in records)), "rows lost"),
        Headline(str(sum(record.doubled for record in records)), "rows doubled"),
        Headline(f"{statistics.median(times):.1f} s" if times else "none", "median time to the next right result"),
        Headline(str(sum(record.rebuilt for record in records)), "versions rebuilt"),
    ]
    return Page(
        title=f"Headrace chaos: seed {about.get('seed')}",
        subtitle=(
            f"Faults against the running query {about.get('query')} on {about.get('master')}, compared with Spark's batch answer over the "
            "same rows. All choices follow from the seed."
        ),
        verdict=verdict_text(records),
        good=not failures,
        figures=heads,
        plots=plots(records, batches, began_s),
        tables={
            "Kinds of fault": [(kind, _kind(records, kind)) for kind in KINDS if any(record.kind == kind for record in records)],
            "Campaign": [(name, str(value)) for name, value in about.items()],
            "Faults": [(f"{record.number + 1} {record.kind}", told(record)) for record in records],
            "Machine and versions": machine(),
        },
        texts={"Failures": "\n".join(f"{r.number + 1} {r.kind}: {r.what}: {r.outcome} {r.detail}" for r in failures)} if failures else {},
    )


def _kind(records: Sequence[Record], kind: str) -> str:
    count, right, ended, lost, doubled, wrong, median, longest = figures([record for record in records if record.kind == kind])
    text = f"{KINDS[kind]}: {right} of {count} right, {lost} lost, {doubled} doubled, {wrong} wrong"
    return text + (f"; next right result after {median} s (median), {longest} s at most" if median else "") + f"; ended {ended} times"


def told(record: Record) -> str:
    """What one fault was, and its outcome."""
    text = f"{record.at_s:.0f} s: {record.what or record.detail}: {record.outcome}"
    text += f", next right result after {record.recovery_s:.1f} s" if record.recovery_s is not None else ""
    text += f", {record.rebuilt} rebuilt" if record.rebuilt else ""
    return text + (f", {record.missing} copies missing" if record.missing else "")


def plots(records: Sequence[Record], batches: Sequence[Mapping[str, Any]], began_s: float) -> list[Plot]:
    """The timeline of the faults, and the batches between them."""
    seen = [record for record in records if record.recovery_s is not None]
    end = max([1.0, *(record.at_s + (record.recovery_s or 0.0) for record in records)])
    groups = {name: [record for record in seen if record.kind in kinds] for name, kinds in GROUPS.items()}
    timeline = tuple(
        Series(name, [record.at_s for record in each], [record.recovery_s for record in each]) for name, each in groups.items() if each
    )
    when = [each["noted_s"] - began_s for each in batches]
    made = [
        Plot(
            "Time to the next right result",
            "seconds",
            timeline,
            points=True,
            x_range=(0.0, end),
            note="A point is a fault. Its height is the time until a file that came right after it was delivered, in order.",
        ),
        Plot(
            "Batch time",
            "seconds",
            (Series("batch", when, [each["batch_s"] for each in batches]),),
            points=True,
            x_range=(0.0, end),
            note="Of the batches whose process lived to tell.",
        ),
        Plot("Versions rebuilt", "versions", (Series("rebuilt", when, [float(each["rebuilt"]) for each in batches]),), x_range=(0.0, end)),
        Plot("Copies missing", "copies", (Series("missing", when, [float(each["missing"]) for each in batches]),), x_range=(0.0, end)),
    ]
    return [plot for plot in made if plot.series]
