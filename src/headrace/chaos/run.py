"""Runs a campaign as the command does: prints the plan, shows progress, ends cleanly on Ctrl-C, and writes the report."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.chaos.campaign import Campaign, Rules
from headrace.chaos.loading import Target
from headrace.chaos.page import page, verdict_text
from headrace.chaos.plan import batches_of, plan, possible_kinds
from headrace.chaos.report import Report, costs, summary
from headrace.chaos.rig import Setup
from headrace.chaos.spent import told
from headrace.errors import HeadraceError
from headrace.logs import logger
from headrace.report.page import render

EXIT_WRONG, EXIT_INTERRUPTED = 1, 130
_log = logger(__name__)


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    setup: Setup
    rules: Rules
    seed: int
    faults: int
    kinds: tuple[str, ...]
    seconds: float
    out: Path
    keep: bool


def run(request: Request, console: Console) -> int:
    """Run a campaign and return the exit code: 0 if all was right, 1 if not, 130 after Ctrl-C."""
    Target.parse(**request.setup.target)
    kinds = possible_kinds(request.setup.executors, request.kinds)
    faults = plan(request.seed, request.faults, kinds)
    about = _about(request, kinds, batches_of(faults))
    report = Report(request.out.absolute(), console, {"about": about, "plan": [fault.to_json() for fault in faults]})
    report.say(f"chaos: seed {request.seed}, {len(faults)} faults on {request.setup.master}; repeat with --seed {request.seed}")
    (report.folder / "plan.json").write_text(json.dumps([fault.to_json() for fault in faults], indent=1))
    work = Path(tempfile.mkdtemp(prefix=f"headrace-chaos-{request.seed}-"))
    with _ctrl_c(request.seconds) as stopping, console.status("starting") as status:

        def show(text: str) -> None:
            status.update(text)
            if not console.is_terminal and not text.startswith("fault "):
                report.say(f"{text} ...")

        campaign = Campaign(request.seed, faults, request.setup, request.rules, work, report.add_briefly, show, stopping)
        try:
            campaign.run()
        except KeyboardInterrupt:
            _log.info("interrupted; the report has what was seen so far")
        except HeadraceError:
            report.close()
            raise
    return _conclude(campaign, report, about, stopping, request)


def _conclude(campaign: Campaign, report: Report, about: dict[str, Any], stopping: Stopping, request: Request) -> int:
    records = campaign.records
    report.table(summary(records))
    report.say(costs(records))
    report.say(f"time: {told(campaign.rig.spent.seconds)}")
    good = bool(records) and not report.failures
    made = page(records, about, campaign.rig.batches, campaign.began_s)
    (report.folder / "report.html").write_text(render(made), encoding="utf-8")
    report.say(f"chaos: {verdict_text(records)}, {report.seconds:.0f} s", "bold green" if good else "bold red")
    if report.failures or request.keep:
        report.say(f"the query's files are in {campaign.work}")
    else:
        campaign.clean()
    report.say(f"report: {report.folder / 'report.html'}")
    report.close()
    if report.failures:
        return EXIT_WRONG
    return EXIT_INTERRUPTED if stopping.interrupted else 0


def _about(request: Request, kinds: tuple[str, ...], batches: int) -> dict[str, Any]:
    setup = request.setup
    return {
        "query": setup.target["text"],
        "seed": request.seed,
        "faults": request.faults,
        "kinds": ", ".join(kinds),
        "master": setup.master,
        "options": ", ".join(f"{name}={value}" for name, value in setup.options.items()) or "the program's",
        "expectation": str(request.rules.expectation),
        "batches": batches,
    }


class Stopping(threading.Event):
    """Set when no new fault shall begin."""

    interrupted = False


@contextmanager
def _ctrl_c(seconds: float) -> Iterator[Stopping]:
    """A first Ctrl-C lets the current fault end, a second one does not. After some seconds no new fault begins either."""
    asked = Stopping()
    timer = threading.Timer(seconds, asked.set)
    timer.daemon = True
    if seconds:
        timer.start()

    def on_interrupt(number: int, frame: Any) -> None:
        if asked.interrupted:
            raise KeyboardInterrupt
        asked.interrupted = True
        asked.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
        timer.cancel()
