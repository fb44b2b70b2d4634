"""The query editor: texts and drawings are checked, tried, started, or replace a running query. Without a workbench there is no editor.

It runs the user's code. So while `Queries.workbench` is None (``headrace.ui.editor`` is not on, or the monitor is not in a program), these
addresses are answered like any that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.dashboard import answers
from headrace.dashboard.editor.drawing import Drawing
from headrace.dashboard.editor.runs import Runs, Work
from headrace.dashboard.editor.texts import LANGUAGES, PYSPARK, Text, text_of
from headrace.dashboard.editor.workbench import Launch, Outlet, Wanted, Workbench
from headrace.dashboard.pages.changes import body_of
from headrace.dashboard.queries import Queries
from headrace.errors import QueryError

AT_ONCE = 8
"""So many pages wait for answers at once. More wait until one is done; other pages of the monitor do not."""
CHECK_S, SAMPLE_S, START_S, REPLACE_S = 30.0, 60.0, 120.0, 600.0
MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "availableNow", "once")
RESERVED = ("checkpointlocation", "headrace.ui", "headrace.uieditor", "headrace.ui.editor")


def routes(known: Queries) -> list[Route]:
    runs, waiting = Runs(), CapacityLimiter(AT_ONCE)

    def workbench() -> Workbench:
        if known.workbench is None or known.workbench.is_over:
            raise HTTPException(404)
        return known.workbench

    def parts(request: Request) -> Response:
        """Which parts of the monitor there are."""
        return answers.data({"editor": known.workbench is not None and not known.workbench.is_over})

    def about(request: Request) -> Response:
        bench = workbench()
        running = {id: name for name, id in _running(known, bench)}
        return answers.data({"streams": bench.streams(), "functions": bench.functions(), "queries": running})

    def does(kind: str, deadline_s: float, act: Callable[[Workbench, Mapping[str, Any], Work], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            bench, body = workbench(), await body_of(request)
            page, turn = _text(body, "page"), body.get("turn", 0)
            if not isinstance(turn, int):
                raise QueryError(where="editor, turn", wanted="a whole number", found=type(turn).__name__)

            def run() -> Any:
                return runs.run(page, kind, lambda work: act(bench, body, work), deadline_s, turn)

            return answers.data(await to_thread.run_sync(run, limiter=waiting))

        return endpoint

    async def cancel(request: Request) -> Response:
        workbench()
        return answers.data({"cancelled": runs.cancel(_text(await body_of(request), "page"))})

    def post(path: str, endpoint: Callable[[Request], Any]) -> Route:
        return Route(f"/api/editor/{path}", endpoint, methods=["POST"])

    return [
        Route("/api/parts", parts),
        Route("/api/editor", about),
        post("check", does("check", CHECK_S, lambda bench, body, work: bench.check(wanted(body)))),
        post("drawing", does("check", CHECK_S, lambda bench, body, work: drawn(bench, body))),
        post("sample", does("sample", SAMPLE_S, lambda bench, body, work: bench.sample(wanted(body), work.ended))),
        post("start", does("start", START_S, lambda bench, body, work: bench.start(wanted(body), launch(body)))),
        post("replace", does("replace", REPLACE_S, lambda bench, body, work: replaced(known, bench, body))),
        post("cancel", cancel),
    ]


def _running(known: Queries, bench: Workbench) -> list[tuple[str, str]]:
    """Name and id of the queries that can be replaced."""
    can = set(bench.replaceable())
    return [(each.name, each.id) for each in known.all() if each.location in can]


def drawn(bench: Workbench, body: Mapping[str, Any]) -> dict[str, Any]:
    """The text of a drawing, what is wrong by box, and the columns behind each box."""
    drawing, language = Drawing.read(body.get("drawing")), _one_of(body, "language", LANGUAGES)
    text, python = text_of(drawing, language), text_of(drawing, PYSPARK)
    by_name = dict(python.frames)
    found = bench.frames(python.text, by_name)
    problems = [{"box": each.box, "message": each.message} for each in text.problems]
    problems += [{"box": _box_at(python, each["line"]), "message": each["message"]} for each in found["errors"]]
    return {
        "text": text.text,
        "boxes": list(text.boxes),
        "outputs": list(text.outputs),
        "problems": problems,
        "columns": found["columns"],
        "finished": not problems and bool(text.outputs),
    }


def _box_at(text: Text, line: int) -> str:
    return text.boxes[line - 1] if 0 < line <= len(text.boxes) else ""


def replaced(known: Queries, bench: Workbench, body: Mapping[str, Any]) -> dict[str, Any]:
    """What replacing a query does, or would do."""
    rename = _texts(body, "rename")
    location = known.find(_text(body, "query")).location
    return bench.replace(wanted(body), location, bool(body.get("backfill")), rename, bool(body.get("dryRun", True)))


def wanted(body: Mapping[str, Any]) -> Wanted:
    """The text of a request."""
    language, mode = _one_of(body, "language", LANGUAGES), _one_of({"mode": "append"} | dict(body), "mode", MODES)
    return Wanted(language, _text(body, "text"), mode, bool(body.get("executes", True)))


def launch(body: Mapping[str, Any]) -> Launch:
    """How the query of a request is to be started."""
    given = body.get("sinks")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise QueryError(where="start", wanted="a list of sinks", found=type(given).__name__)
    outlets = tuple(
        Outlet(_text(each, "result"), _text(each, "format"), _one_of(each, "mode", MODES), _texts(each, "options")) for each in given
    )
    trigger, options = body.get("trigger") or {}, _texts(body, "options")
    if not isinstance(trigger, dict) or len(trigger) > 1 or any(each not in TRIGGERS for each in trigger):
        raise QueryError(where="start", wanted=f"one trigger of {', '.join(TRIGGERS)}", found=repr(trigger)[:200])
    taken = next((each for each in options if each.lower() in RESERVED), None)
    if taken is not None:
        raise QueryError(where="start", wanted="options of the query", found=f"{taken}, which the editor sets itself")
    return Launch(_text(body, "name").strip(), _text(body, "checkpoint").strip(), trigger, outlets, options)


def _text(body: Mapping[str, Any], name: str) -> str:
    found = body.get(name, "")
    if not isinstance(found, str):
        raise QueryError(where=f"editor, {name}", wanted="a text", found=type(found).__name__)
    return found


def _texts(body: Mapping[str, Any], name: str) -> dict[str, str]:
    found = body.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for pair in found.items() for each in pair):
        raise QueryError(where=f"editor, {name}", wanted="texts by name", found=repr(found)[:200])
    return found


def _one_of(body: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    found = _text(body, name)
    if found not in choices:
        raise QueryError(where=f"editor, {name}", wanted=" or ".join(choices), found=repr(found[:100]))
    return found
