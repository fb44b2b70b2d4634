"""``headrace ctl replace CHECKPOINT FILE.py``: the running query loads a changed program, and takes its plan.

The query's own process runs the program, with its queries planned instead of started. The change stops the query's control endpoint and
opens another one, so the request only begins it, and later requests ask for the outcome.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from headrace.api.planning import Planned
from headrace.api.programs import planned_by
from headrace.api.query import HeadraceQuery
from headrace.errors import HeadraceError, QueryError
from headrace.logs import logger
from headrace.runtime.options import CHECKPOINT
from headrace.state.stores import address_of

_log = logger(__name__)


def answering(query: HeadraceQuery) -> HeadraceQuery:
    """The query, which from now on answers requests to replace its plan."""
    query._engine.endpoint.replacing = _Replacing(query).answer
    return query


class _Replacing:
    """Answers the requests of one query."""

    def __init__(self, query: HeadraceQuery) -> None:
        self.query = query
        self._worker: threading.Thread | None = None
        self._outcome: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin to replace the plan, try what that would do, or tell what has come of it."""
        if request["do"] == "replaced":
            running = self._worker is not None and self._worker.is_alive()
            return {"running": True} if running else {"running": False, **self._outcome}
        planned = self._planned(Path(str(request.get("file"))), request.get("query"))
        given: dict[str, Any] = {"backfill": bool(request.get("backfill")), "rename": dict(request.get("rename") or {})}
        if request.get("dry_run"):
            return {"replaced": self.query._take(planned.written, "replace", **given, dry_run=True).to_json()}
        if self._worker is not None and self._worker.is_alive():
            raise QueryError(where="replace", wanted="one change at a time", found="another one that has not ended")
        self._outcome = {}
        self._worker = threading.Thread(target=self._work, args=(planned, given), name="headrace-replace", daemon=True)
        self._worker.start()
        return {"running": True}

    def _work(self, planned: Planned, given: dict[str, Any]) -> None:
        try:
            self._outcome = {"replaced": self.query._take(planned.written, "replace", **given, dry_run=False).to_json()}
        except HeadraceError as refused:
            self._outcome = {"failed": str(refused)}
        except Exception as failed:
            _log.warning("the query was not replaced", exc_info=True)
            self._outcome = {"failed": f"{type(failed).__name__}: {failed}"}

    def _planned(self, file: Path, name: str | None) -> Planned:
        """The query of the program that is to run here."""
        every = planned_by(file, "replace").queries
        location = self.query._engine.checkpoint.location
        for alike in (
            [each for each in every if name is not None and each.name == name],
            [each for each in every if CHECKPOINT in each.options and address_of(each.options[CHECKPOINT], CHECKPOINT) == location],
            [each for each in every if self.query.name is not None and each.name == self.query.name],
            list(every),
        ):
            if len(alike) == 1:
                return alike[0]
            if name is not None:
                break
        names = ", ".join(each.name or each.where for each in every)
        hint = "give its queryName with --query"
        raise QueryError(where=str(file), wanted="the query that is to run on this checkpoint", found=f"several: {names}", hint=hint)
