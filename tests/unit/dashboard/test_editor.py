"""The editor's addresses: only where it is switched on, only for its own page, one piece of work at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.config import Config
from headrace.dashboard.editor import runs
from headrace.dashboard.editor.runs import Runs, Work
from headrace.dashboard.editor.workbench import Launch, Wanted
from headrace.dashboard.server import Server
from headrace.errors import QueryError
from tests.unit.dashboard.recorded import Client, checkpoint, served

EVIL = "<script>alert(1)</script>"
ADDRESSES = ("check", "drawing", "sample", "start", "replace", "cancel")
DRAWING: dict[str, Any] = {"boxes": [{"id": "1", "kind": "source", "name": "calls", "settings": {"stream": "calls"}}], "wires": []}


class Noted:
    """A workbench that notes what it is asked for. What a session does is tested with a session."""

    is_over = False

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.go_on = threading.Event()

    def streams(self) -> list[dict[str, Any]]:
        return [{"name": EVIL, "columns": [{"name": EVIL, "type": "string", "delayMs": None}], "sources": []}]

    def functions(self) -> dict[str, list[str]]:
        return {"sql": ["sum"], "pyspark": ["sum"]}

    def check(self, wanted: Wanted) -> dict[str, Any]:
        self.asked.append(wanted)
        return {"errors": []}

    def frames(self, text: str, names: Mapping[str, str]) -> dict[str, Any]:
        return {"columns": {}, "errors": [{"line": 1, "message": "not so"}] if "filter" in text else []}

    def sample(self, wanted: Wanted, ended: threading.Event) -> dict[str, Any]:
        self.asked.append(wanted)
        ended.wait(30)
        return {"errors": [], "tables": []}

    def start(self, wanted: Wanted, launch: Launch) -> dict[str, Any]:
        self.asked.append(launch)
        return {"errors": [], "page": "x", "name": launch.name}

    def replaceable(self) -> list[str]:
        return []

    def replace(self, wanted: Wanted, location: str, backfill: bool, rename: Mapping[str, str], dry_run: bool) -> dict[str, Any]:
        self.asked.append((location, backfill, dict(rename), dry_run))
        return {"errors": []}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = served(checkpoint(tmp_path_factory.mktemp("editor") / "ckpt"))
    yield running
    running.stop()


@pytest.fixture
def bench(server: Server) -> Iterator[Noted]:
    found = server.known.workbench = Noted()
    yield found
    server.known.workbench = None


def asked(server: Server, path: str, body: Any, **headers: str | None) -> tuple[int, Any]:
    client = Client(server).bearer()
    given = {"Content-Type": "application/json", "Origin": client.origin} | headers
    status, _, text = client.send("POST", f"/api/editor/{path}", body, **given)
    return status, json.loads(text)


def test_without_the_setting_there_is_no_editor(server: Server) -> None:
    client = Client(server).bearer()
    assert client.get("/api/parts") == {"editor": False}
    absent = client.send("GET", "/api/editor/nothing")
    assert client.send("GET", "/api/editor")[0] == absent[0] == 404
    for each in ADDRESSES:
        status, answer = asked(server, each, {"page": "p", "language": "sql", "text": "SELECT 1"})
        assert (status, "an address of the monitor" in answer["error"]) == (404, True), each


def test_the_setting_has_two_names_and_is_off() -> None:
    assert not Config.read({}).uiEditor
    assert Config.read({"headrace.ui.editor": "true"}).uiEditor
    assert Config.read({"headrace.uiEditor": "true"}).uiEditor
    assert not Config.read({"headrace.ui.editor": "true"}, {"headrace.uieditor": "false"}).uiEditor
    with pytest.raises(QueryError, match=r"option 'headrace.uiEditor'"):
        Config.read({"headrace.ui.editor": "yes"})


def test_an_editor_whose_session_was_stopped_is_gone(server: Server, bench: Noted) -> None:
    assert Client(server).bearer().get("/api/parts") == {"editor": True}
    bench.is_over = True
    assert Client(server).bearer().get("/api/parts") == {"editor": False}
    assert asked(server, "check", {"page": "p", "language": "sql", "text": ""})[0] == 404


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Origin": "http://evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_other_pages_and_strangers_run_nothing(server: Server, bench: Noted, path: str, headers: dict[str, Any], status: int) -> None:
    assert asked(server, path, {"page": "p", "language": "sql", "text": "SELECT 1"}, **headers)[0] == status
    assert bench.asked == []


def test_names_that_are_html_are_json(server: Server, bench: Noted) -> None:
    status, headers, text = Client(server).bearer().send("GET", "/api/editor")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert json.loads(text)["streams"][0]["name"] == EVIL


def test_a_check_while_typing_is_told_apart(server: Server, bench: Noted) -> None:
    body = {"page": "p", "language": "pyspark", "text": "x", "mode": "update", "executes": False}
    assert asked(server, "check", body) == (200, {"errors": []})
    assert bench.asked == [Wanted("pyspark", "x", "update", False)]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("check", {"language": "cobol", "text": ""}, "sql or pyspark"),
        ("check", {"language": "sql", "text": 1}, "wanted a text; found int"),
        ("check", {"language": "sql", "text": "", "mode": "all"}, "append or update or complete"),
        ("drawing", {"language": "sql", "drawing": {"boxes": 1}}, "boxes and wires"),
        ("start", {"language": "sql", "text": ""}, "a list of sinks"),
        ("start", {"language": "sql", "text": "", "sinks": [], "trigger": {"continuous": "1 s"}}, "one trigger of"),
        ("start", {"language": "sql", "text": "", "sinks": [], "options": {"headrace.UI": "false"}}, "which the editor sets itself"),
        ("start", {"language": "sql", "text": "", "sinks": [{"format": "noop", "mode": "x"}]}, "append or update"),
        ("replace", {"language": "sql", "text": "", "query": "nobody"}, "a query that the monitor shows"),
        ("replace", {"language": "sql", "text": "", "query": "nobody", "rename": {"a": 1}}, "texts by name"),
    ],
)
def test_a_request_that_no_page_sends_is_refused(server: Server, bench: Noted, path: str, body: dict[str, Any], message: str) -> None:
    status, answer = asked(server, path, {"page": "p"} | body)
    assert status == 400
    assert message in answer["error"]
    assert bench.asked == []


def test_start_and_replace_get_what_the_page_says(server: Server, bench: Noted) -> None:
    sink = {"result": "", "format": "parquet", "mode": "append", "options": {"path": "out"}}
    body = {"page": "p", "language": "sql", "text": "SELECT 1", "name": " n ", "checkpoint": "c", "sinks": [sink]}
    body |= {"trigger": {"once": True}}
    assert asked(server, "start", body)[0] == 200
    (launch,) = bench.asked
    assert (launch.name, launch.checkpoint, dict(launch.trigger), launch.outlets[0].options) == ("n", "c", {"once": True}, {"path": "out"})
    shown = server.known.all()[0]
    assert asked(server, "replace", {"page": "p", "language": "sql", "text": "x", "query": shown.id, "rename": {"a": "b"}})[0] == 200
    assert bench.asked[1] == (shown.location, False, {"a": "b"}, True), "without a word, it is a dry run"


def test_a_drawing_gets_its_text_and_its_mistakes_by_box(server: Server, bench: Noted) -> None:
    boxes = [*DRAWING["boxes"], {"id": "2", "kind": "filter", "name": "some", "settings": {"condition": "x"}}]
    body = {"page": "p", "language": "sql", "drawing": {"boxes": boxes, "wires": [{"source": "1", "target": "2"}]}}
    status, answer = asked(server, "drawing", body)
    assert status == 200
    assert answer["text"] == "WITH some AS (\n  SELECT * FROM calls\n  WHERE x\n)"
    assert answer["problems"] == [{"box": "2", "message": "not so"}]
    assert not answer["finished"]


def test_one_piece_of_work_at_a_time_and_it_can_be_cancelled(server: Server, bench: Noted) -> None:
    body, answers = {"page": "p", "language": "sql", "text": "SELECT 1"}, list[Any]()
    sampling = threading.Thread(target=lambda: answers.append(asked(server, "sample", body)))
    sampling.start()
    while not bench.asked:
        assert sampling.is_alive()
    status, answer = asked(server, "check", body)
    assert (status, "sample goes on" in answer["error"]) == (400, True)
    assert asked(server, "check", body | {"page": "another"})[0] == 200
    assert asked(server, "cancel", {"page": "p"}) == (200, {"cancelled": True})
    sampling.join(30)
    assert "it was cancelled" in answers[0][1]["error"]
    assert asked(server, "cancel", {"page": "p"}) == (200, {"cancelled": False})
    assert asked(server, "check", body)[0] == 200


def test_a_newer_check_ends_the_one_before() -> None:
    every, begun, found = Runs(), threading.Event(), list[str]()

    def slow(work: Work) -> str:
        begun.set()
        work.ended.wait(30)
        return "slow"

    def first() -> None:
        try:
            every.run("p", Runs.CHECK, slow)
        except QueryError as refused:
            found.append(str(refused))

    before = threading.Thread(target=first)
    before.start()
    assert begun.wait(30)
    assert every.run("p", Runs.CHECK, lambda work: "new") == "new"
    before.join(30)
    assert "the text has changed since" in found[0]


def test_a_check_that_was_overtaken_on_its_way_is_not_done() -> None:
    every = Runs()
    assert every.run("p", Runs.CHECK, lambda work: "new", turn=2) == "new"
    with pytest.raises(QueryError, match="the text has changed since"):
        every.run("p", Runs.CHECK, lambda work: "old", turn=1)
    assert every.run("another", Runs.CHECK, lambda work: "other", turn=1) == "other"
    assert every.run("p", Runs.CHECK, lambda work: "again", turn=2) == "again"


def test_work_that_never_ends_is_broken_off_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "GRACE_S", 0.0)
    over = threading.Event()

    def endless(work: Work) -> None:
        try:
            while True:
                pass
        finally:
            over.set()

    with pytest.raises(QueryError, match=r"took more than 0.05 s"):
        Runs().run("p", "check", endless, 0.05)
    assert over.wait(30)


def test_a_start_that_takes_too_long_says_so_and_is_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "GRACE_S", 0.0)
    go_on, over = threading.Event(), threading.Event()

    def slow(work: Work) -> None:
        assert go_on.wait(30)
        over.set()

    every = Runs()
    with pytest.raises(QueryError, match=r"more than 0.05 s, and goes on"):
        every.run("p", "start", slow, 0.05)
    go_on.set()
    assert over.wait(30)


def test_what_a_text_raises_is_an_error_of_ours() -> None:
    def leaves(work: Work) -> None:
        raise SystemExit(3)

    with pytest.raises(QueryError, match="SystemExit: 3"):
        Runs().run("p", "check", leaves)
