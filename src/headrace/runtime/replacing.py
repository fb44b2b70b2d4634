"""Replaces the plan of a running query: stops it between two batches, and starts the new plan on the same checkpoint.

    check everything that can be checked   the old plan runs on; an error leaves it alone
    stop after the current batch           the pause begins
    plan one batch without rows            the change is a version of its own (``start_query``)
    start the new plan, wait for it        the pause ends when that version is committed and delivered
    if that fails: undo it, start the old plan again

Nothing is lost if the process dies on the way. Before the version of the change is committed, the checkpoint is the old query's, and the
batch without rows changes nothing for it. Afterwards it is the new one's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from headrace.errors import HeadraceError, QueryError
from headrace.ids import Version
from headrace.logs import logger
from headrace.runtime.backfill import check_changes
from headrace.runtime.changes import Changes, Policy
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.engine import Engine
from headrace.runtime.failpoints import fail_point
from headrace.runtime.identity import recognise
from headrace.runtime.start import QueryPlan, first_routing, start_query

LOOK_S = 0.005
_log = logger(__name__)


@dataclass(frozen=True)
class Replaced:
    """A plan that runs in the place of another one, and what that took."""

    engine: Engine
    changes: Changes
    version: Version | None
    """The version of the change; None if the query had no version yet."""
    pause_ms: float
    """From the end of the old plan's last batch to the end of the new plan's first one."""


class NotReplacedError(QueryError):
    """The new plan did not start. ``engine`` runs the old plan again; None if that failed too."""

    engine: Engine | None = None


def preview(new: QueryPlan, checkpoint: Checkpoint, policy: Policy) -> Changes:
    """What becomes of the state of the query at this checkpoint if ``new`` replaces its plan. Raises an error if it cannot."""
    found = recognise(new.flow, checkpoint, policy)
    check_changes(found.flow, found.changes, checkpoint, new.config, is_running=True)
    first_routing(found.flow, new.config, new.session, checkpoint.routing(), new.run.elastic)
    for output in new.outputs:
        output.make_sink(new.config)
    return found.changes


def replace_plan(engine: Engine, old: QueryPlan, new: QueryPlan, policy: Policy) -> Replaced:
    """Run ``new`` in the place of ``old``, which ``engine`` runs.

    Raises NotReplacedError if ``new`` does not start; then the old plan runs again. Any other error leaves it running as it is.
    """
    location = engine.checkpoint.location
    if engine.gate.running_in == threading.get_ident():
        found = "a call inside a batch, by a function of foreachBatch"
        raise QueryError(where=location, wanted="replace between two batches", found=found, hint="call it from another thread")
    preview(new, engine.checkpoint, policy)
    engine.gate.stopping.set()
    engine.gate.wait_for_batch()
    began_s = time.monotonic()
    engine.lifetime.stop()
    if (failure := engine.gate.failure()) is not None:
        raise failure
    fail_point("replace-stopped", engine.gate.finished or Version(0))
    successor: Engine | None = None
    try:
        successor = start_query(new, policy)
        version = _await_first(successor)
    except Exception as failed:
        if successor is not None:
            successor.lifetime.stop_now()
        raise _back_to(old, engine.checkpoint, failed) from failed
    pause_ms = (time.monotonic() - began_s) * 1000
    _log.info("the plan was replaced; the pause took %.0f ms", pause_ms, query=location)
    return Replaced(successor, successor.changes, version, pause_ms)


def _await_first(engine: Engine) -> Version | None:
    """Wait for the first version of a plan that was just started. Raises the error that ended the query."""
    if engine.checkpoint.spark_log.newest("offsets") is None:
        # The sources have had no rows yet.
        return None
    while (finished := engine.gate.finished) is None:
        if not engine.spark.is_active():
            engine.gate.wait_for_batch()
            if engine.gate.finished is None:
                raise engine.gate.failure() or QueryError(where=engine.checkpoint.location, found="the query was stopped meanwhile")
        time.sleep(LOOK_S)
    return finished


def _back_to(old: QueryPlan, checkpoint: Checkpoint, failure: Exception) -> NotReplacedError:
    """Start the old plan again. Returns the error for the user."""
    location = checkpoint.location
    told = str(failure).split("\n")[0]
    refused = NotReplacedError("the new plan did not start", where=location, found=told, hint="the old plan runs on, and nothing is lost")
    try:
        checkpoint.undo_undelivered()
        refused.engine = start_query(old, Policy(old.config.operatorChanges), was_undone=True)
    except HeadraceError as second:
        hint = "start the program again, with the old query or with the new one"
        refused = NotReplacedError(
            "neither the new plan nor the old one starts", where=location, found=f"{told}; and then: {second}", hint=hint
        )
    return refused
