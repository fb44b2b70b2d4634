"""The query editor on a real session: what it checks, samples, starts and replaces is what Spark and Headrace say and do."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.api.editor.texts import built_from_python
from headrace.api.spark_frame import SparkFrame
from headrace.dashboard import live
from headrace.dashboard.editor import runs
from headrace.dashboard.editor.drawing import Drawing
from headrace.dashboard.editor.texts import text_of
from tests.unit.dashboard.recorded import Client

pytestmark = pytest.mark.spark

EVIL = "<script>alert(1)</script>"
SCHEMA = f"src string, seconds long, ts timestamp, `{EVIL}` string"
ROWS = [("ada", 60, "2024-01-01 00:00:00"), ("bob", 10, "2024-01-01 00:01:00"), ("ada", 30, "2024-01-01 00:02:00")]
TOTALS = "SELECT src, sum(seconds) AS total FROM calls GROUP BY src"


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with a row each, oldest first."""
    place = tmp_path_factory.mktemp("editor") / "calls"
    place.mkdir()
    for at, (src, seconds, ts) in enumerate(ROWS):
        (place / f"{at}.json").write_text(json.dumps({"src": src, "seconds": seconds, "ts": ts, EVIL: "x"}) + "\n")
    return place


@pytest.fixture(scope="module")
def url(spark: SparkSession, folder: Path) -> Iterator[str]:
    """The editor, with a stream of files and one that never ends."""
    before = live._server, live._process
    live._server = None
    spark.conf.set("headrace.ui.editor", "true")
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().selectExpr("value % 3 AS k", "timestamp AS ts")
    yield hr.editor(spark, calls=spark.readStream.schema(SCHEMA).json(str(folder)), ticks=ticks)
    spark.conf.unset("headrace.ui.editor")
    spark.catalog.dropTempView("calls")
    spark.catalog.dropTempView("ticks")
    assert live._server is not None
    live._server.stop()
    live._server, live._process = before


@pytest.fixture
def ask(url: str) -> Callable[..., Any]:
    """Sends a request of the page and returns the answer. Raises the error that the page would show."""
    assert live._server is not None
    client = Client(live._server).bearer()

    def send(path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Origin": client.origin}
        status, _, text = client.send("POST", f"/api/editor/{path}", {"page": "p", "language": "sql"} | body, **headers)
        answer = json.loads(text)
        if status != 200:
            raise RuntimeError(answer["error"])
        return answer

    return send


def until(found: Callable[[], Any], seconds_max: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds_max
    while not (value := found()):
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)
    return value


def test_the_editor_is_refused_without_its_setting(spark: SparkSession) -> None:
    with pytest.raises(hr.QueryError, match=r"runs code in this program.*headrace\.ui\.editor"):
        hr.editor(spark)


def test_streams_are_listed_with_columns_and_types(url: str) -> None:
    assert live._server is not None
    found = Client(live._server).bearer().get("/api/editor")
    streams = {each["name"]: each for each in found["streams"]}
    assert [(each["name"], each["type"]) for each in streams["calls"]["columns"]] == [
        ("src", "string"), ("seconds", "bigint"), ("ts", "timestamp"), (EVIL, "string"),
    ]  # fmt: skip
    assert [each["name"] for each in streams["ticks"]["columns"]] == ["k", "ts"]
    assert {"sum", "window", "session_window"} <= set(found["functions"]["sql"]) & set(found["functions"]["pyspark"])


def test_a_text_is_analysed_and_planned_and_nothing_starts(spark: SparkSession, ask: Callable[..., Any]) -> None:
    before = len(spark.streams.active)
    found = ask("check", text=TOTALS + ";\n", mode="complete")
    assert found["errors"] == []
    assert [(each["name"], each["type"]) for each in found["results"][""]] == [("src", "string"), ("total", "bigint")]
    parts = [(each["kind"], each["runs"]) for each in found["graph"]["nodes"]]
    assert parts == [("source", "JVM"), ("stateful", "Python"), ("sink", "JVM")]
    assert "Python over Arrow, output mode complete" in found["plan"]
    assert "operator-set-cloud" in found["cost"]
    python = "t = calls.groupBy('src').agg(F.sum('seconds').alias('total'))\nt"
    same = ask("check", language="pyspark", text=python, mode="complete")
    assert (same["errors"], same["results"]) == ([], found["results"])
    stateless = ask("check", text="SELECT upper(src) AS s FROM calls")
    assert (stateless["errors"], stateless["stateful"], stateless["cost"]) == ([], [], "")
    assert len(spark.streams.active) == before


@pytest.mark.parametrize(
    ("language", "text", "line", "message"),
    [
        ("sql", "SELECT src\nFROM callz", 2, "`callz` cannot be found"),
        ("sql", "SELECT\n  sec FROM calls", 2, "`sec` cannot be resolved"),
        ("sql", "SELECT src FROM\n\ncalls GROUP BY", 3, "Syntax error"),
        ("sql", "DROP VIEW calls", 1, "Syntax error at or near 'DROP'"),
        ("sql", TOTALS + "; DROP VIEW calls", 1, "Syntax error"),
        ("sql", "  ", 0, "the text is empty"),
        ("sql", "SELECT 1 AS x", 0, "wanted a streaming DataFrame; found a batch DataFrame"),
        ("sql", TOTALS, 0, "In output mode update or complete it can run."),
        ("pyspark", "x = 1\ncalls.filter('sec > 3')", 2, "`sec` cannot be resolved"),
        ("pyspark", "x = 1\ncalls.filter(", 2, "SyntaxError: '(' was never closed"),
        ("pyspark", "def f():\n    return 1 / 0\n\nf()", 2, "ZeroDivisionError: division by zero"),
        ("pyspark", "raise SystemExit(3)", 1, "SystemExit: 3"),
        ("pyspark", "calls\nresult = 5", 2, "it is int"),
        ("pyspark", "{}", 1, "it is an empty dict"),
        ("pyspark", "hr.stream(calls).groupBy('nobody').count()", 1, "nobody"),
        ("pyspark", "import os.path\nimport nothing_there", 2, "No module named 'nothing_there'"),
    ],
)
def test_mistakes_are_marked_at_their_line_in_a_few_words(
    ask: Callable[..., Any], language: str, text: str, line: int, message: str
) -> None:
    (found,) = ask("check", language=language, text=text)["errors"]
    assert message in found["message"]
    assert found["line"] == line
    assert "\n" not in found["message"].strip()
    assert "org.apache" not in found["message"]
    assert "SQLSTATE" not in found["message"]


def test_a_python_text_that_does_things_waits_until_somebody_asks(ask: Callable[..., Any], tmp_path: Path) -> None:
    place = tmp_path / "touched"
    text = f"open({str(place)!r}, 'w').close()\ncalls.filter('seconds > 3')"
    found = ask("check", language="pyspark", text=text, executes=False)
    assert found["waits"].startswith("line 1: open may do more")
    assert not place.exists()
    assert ask("check", language="pyspark", text=text)["errors"] == []
    assert place.exists()
    waits = ask("check", language="pyspark", text="n = spark.range(5).count()\ncalls.filter('seconds > 3')", executes=False)["waits"]
    assert waits.startswith("line 1: count may do more")
    counted = ask("check", language="pyspark", text="calls.groupBy('src').count()", executes=False, mode="complete")
    assert counted["errors"] == []
    assert "waits" not in counted


def test_a_drawing_is_checked_box_by_box(ask: Callable[..., Any]) -> None:
    boxes = [
        {"id": "1", "kind": "source", "name": "calls", "settings": {"stream": "calls"}},
        {"id": "2", "kind": "filter", "name": "long", "settings": {"condition": "seconds > 20"}},
        {"id": "3", "kind": "aggregate", "name": "totals", "settings": {"keys": "src", "functions": "sum(seconds) AS total"}},
        {"id": "4", "kind": "sink", "name": "out", "settings": {}},
    ]
    wires = [{"source": str(at), "target": str(at + 1)} for at in (1, 2, 3)]
    texts = {}
    for language in ("sql", "pyspark"):
        found = ask("drawing", language=language, drawing={"boxes": boxes, "wires": wires})
        assert (found["problems"], found["finished"], found["outputs"]) == ([], True, ["out"])
        assert [each["name"] for each in found["columns"]["3"]] == ["src", "total"]
        texts[language] = found["text"]
    # Both texts give what the same query gives in plain words.
    for language, text in texts.items():
        assert ask("check", language=language, text=text, mode="complete")["errors"] == []
    boxes[1]["settings"] = {"condition": "sec > 20"}
    found = ask("drawing", language="sql", drawing={"boxes": boxes, "wires": wires})
    assert [each["box"] for each in found["problems"]] == ["2"]
    assert "`sec` cannot be resolved" in found["problems"][0]["message"]
    assert not found["finished"]


def test_both_texts_of_a_drawing_mean_what_is_drawn(spark: SparkSession) -> None:
    """Every kind of box, on rows at hand: what Spark gives for either text is what plain Python gives for the drawing."""
    told = [("ada", 60), ("bob", 10), ("ada", 30), ("cyn", None), ("dan", 3)]
    spark.createDataFrame(told, "src string, seconds int").createTempView("told")
    spark.createDataFrame([("ada", "Bern"), ("bob", "Rome"), ("cyn", "Oslo")], "src string, city string").createTempView("people")
    given = {
        "told": ("source", {"stream": "told"}, ()),
        "people": ("source", {"stream": "people"}, ()),
        "parts": ("split", {"branches": "big: seconds > 20\nsmall: seconds > 5"}, (("told", ""),)),
        "totals": ("aggregate", {"keys": "src", "functions": "sum(seconds) AS total"}, (("parts", "big"),)),
        "few": ("select", {"columns": "src, seconds * 2 AS total"}, (("parts", "small"),)),
        "rest": ("select", {"columns": "src\n-1 AS total"}, (("parts", "else"),)),
        "all_of_it": ("union", {}, (("totals", ""), ("few", ""), ("rest", ""))),
        "placed": ("join", {"kind": "left", "keys": "src"}, (("all_of_it", ""), ("people", ""))),
        "known": ("filter", {"condition": "city IS NULL OR city <> 'Oslo'"}, (("placed", ""),)),
        "out": ("sink", {}, (("known", ""),)),
    }
    boxes = [{"id": name, "kind": kind, "name": name, "settings": settings} for name, (kind, settings, _) in given.items()]
    wires = [
        {"source": source, "branch": branch, "target": name, "port": port}
        for name, (_, _, inputs) in given.items()
        for port, (source, branch) in enumerate(inputs)
    ]
    drawing = Drawing.read({"boxes": boxes, "wires": wires})
    try:
        sql = spark.sql(text_of(drawing, "sql").text)
        streams = {name: spark.table(name) for name in ("told", "people")}
        (python,) = built_from_python(spark, text_of(drawing, "pyspark").text, streams).results.values()
        assert isinstance(python, SparkFrame)
        wanted = {("ada", 90, "Bern"), ("bob", 20, "Rome"), ("dan", -1, None)}
        for frame in (sql, python.frame):
            assert frame.columns == ["src", "total", "city"]
            rows = [tuple(row) for row in frame.collect()]
            assert (set(rows), len(rows)) == (wanted, 3)
    finally:
        for name in ("told", "people"):
            spark.catalog.dropTempView(name)


def test_a_sample_gives_the_first_results_and_leaves_nothing(spark: SparkSession, ask: Callable[..., Any], folder: Path) -> None:
    before = {each.id for each in spark.streams.active}
    (table,) = ask("sample", text=TOTALS, mode="complete")["tables"]
    batch = spark.read.schema(SCHEMA).json(str(folder))
    wanted = sorted((row.src, str(row.total)) for row in batch.groupBy("src").agg({"seconds": "sum"}).toDF("src", "total").collect())
    assert sorted(map(tuple, table["rows"])) == wanted
    assert table["rowsIn"] == 3
    assert "3 rows in 3 batches" in table["sample"], "a file a batch, whatever the stream's options are"
    assert "there were no more rows" in table["sample"]
    # Without a watermark that moves on, append mode has no results yet: those so far are shown, and this is said.
    windows = "calls.withWatermark('ts', '1 hour').groupBy(F.window('ts', '1 minute'), 'src').count()"
    (table,) = ask("sample", language="pyspark", text=windows)["tables"]
    assert (table["mode"], len(table["rows"])) == ("update", 3)
    assert "values so far" in table["note"]
    assert {each.id for each in spark.streams.active} == before


def samples() -> set[Path]:
    """The folders of samples that run."""
    return set(Path(tempfile.gettempdir()).glob("headrace-sample-*"))


@pytest.mark.parametrize("grace_s", [3.0, 0.0], ids=["told", "broken off while it starts"])
def test_a_sample_of_an_endless_stream_can_be_cancelled(
    spark: SparkSession, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, grace_s: float
) -> None:
    """A thread that is broken off in the middle of a start leaves no query."""
    monkeypatch.setattr(runs, "GRACE_S", grace_s)
    before, answers = samples(), list[str]()

    def run() -> None:
        try:
            ask("sample", text="SELECT k, count(*) AS n FROM ticks WHERE k > 5 GROUP BY k", mode="update")
        except RuntimeError as refused:
            answers.append(str(refused))

    sampling = threading.Thread(target=run)
    sampling.start()
    until(lambda: samples() != before)
    assert ask("cancel")["cancelled"]
    sampling.join(60)
    assert "it was cancelled" in answers[0]
    until(lambda: samples() == before)
    # A query that goes on would write to its checkpoint again.
    time.sleep(1)
    assert samples() == before


def test_the_editor_is_that_of_the_session_that_asked_last(spark: SparkSession, url: str, ask: Callable[..., Any]) -> None:
    assert live._server is not None
    client, other = Client(live._server).bearer(), spark.newSession()
    other.conf.set("headrace.ui.editor", "true")
    hr.editor(other, elsewhere=other.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
    assert [each["name"] for each in client.get("/api/editor")["streams"]] == ["elsewhere"]
    assert ask("check", text="SELECT value FROM elsewhere")["errors"] == []
    assert hr.editor(spark) == url
    assert {each["name"] for each in client.get("/api/editor")["streams"]} == {"calls", "ticks"}


def test_a_sample_does_nothing_to_files_and_to_who_waits_for_queries(spark: SparkSession, ask: Callable[..., Any], tmp_path: Path) -> None:
    """The stream deletes the files that it has read, and the program waits for any of its queries to end."""
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps({"src": "ada", "seconds": number}))
    kept = sorted(tmp_path.iterdir())
    stream = spark.readStream.schema("src string, seconds long").option("cleanSource", "delete").json(str(tmp_path))
    stream.createOrReplaceTempView("cleaned")
    try:
        spark.streams.resetTerminated()
        (table,) = ask("sample", text="SELECT src, sum(seconds) AS total FROM cleaned GROUP BY src", mode="complete")["tables"]
        assert table["rows"] == [["ada", "3"]]
        last = "hr.groupBy(cleaned, 'src', hr.count_window(2, order='arrival')).agg(F.sum('seconds').alias('n'))"
        (table,) = ask("sample", language="pyspark", text=last, mode="update")["tables"]
        assert "3 rows in 3 batches" in table["sample"]
        assert not spark.streams.awaitAnyTermination(1)
        assert sorted(tmp_path.iterdir()) == kept
    finally:
        spark.catalog.dropTempView("cleaned")


def test_a_query_is_started_shown_and_replaced(spark: SparkSession, ask: Callable[..., Any], tmp_path: Path) -> None:
    sink = {"result": "", "format": "noop", "mode": "update", "options": {}}
    text = "SELECT k, count(*) AS n FROM ticks GROUP BY k"
    with pytest.raises(RuntimeError, match="a sink for each result"):
        ask("start", text=text, sinks=[], mode="update")
    assert ask("start", text="SELECT x FROM ticks", sinks=[sink])["errors"][0]["line"] == 1
    launch = {"sinks": [sink], "name": "from the editor", "checkpoint": str(tmp_path / "ckpt"), "options": {"headrace.instances": "1"}}
    started = ask("start", text=text, mode="update", **launch)
    try:
        assert live._server is not None
        client = Client(live._server).bearer()
        page = started["page"]
        # Its name comes with its history, which a thread beside the query writes.
        until(lambda: client.get("/api/editor")["queries"] == {page: "from the editor"})
        until(lambda: client.get(f"/api/queries/{page}")["summary"]["version"])
        (query,) = [each for each in spark.streams.active if each.name == "from the editor"]
        with pytest.raises(RuntimeError, match="start: found Cannot start query with name from the editor as a query with that name"):
            ask("start", text=text, mode="update", **launch | {"checkpoint": str(tmp_path / "other")})
        more = {"text": "SELECT k, count(*) AS n, max(ts) AS newest FROM ticks GROUP BY k", "mode": "update", "query": page}
        tried = ask("replace", **more, dryRun=True)
        assert (tried["dry_run"], list(tried["evolved"])) == (True, ["aggregate"])
        assert "added" in tried["words"]
        assert query.isActive
        done = ask("replace", **more, dryRun=False)
        assert (done["dry_run"], done["evolved"]) == (False, tried["evolved"])
        assert done["pause_ms"] > 0
        # What query.replace cannot do is its own error.
        other = "SELECT src, count(*) AS n FROM calls GROUP BY src"
        with pytest.raises(RuntimeError, match="source"):
            ask("replace", text=other, mode="update", query=page, dryRun=True)
    finally:
        for each in spark.streams.active:
            if each.name == "from the editor":
                each.stop()
    assert client.get("/api/editor")["queries"] == {}


def test_a_drawing_with_two_sinks_is_one_query(spark: SparkSession, ask: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    text = "long = calls.filter('seconds > 20')\nresult = {'long': long, 'short': calls.filter('seconds <= 20')}"
    assert list(ask("check", language="pyspark", text=text)["results"]) == ["long", "short"]
    sinks = [{"result": name, "format": "json", "mode": "append", "options": {"path": str(tmp_path / name)}} for name in ("long", "short")]
    with pytest.raises(RuntimeError, match="a checkpoint, because the query has several sinks"):
        ask("start", language="pyspark", text=text, sinks=sinks)
    launch = {"sinks": sinks, "checkpoint": str(tmp_path / "ckpt"), "trigger": {"availableNow": True}, "name": "two"}
    ask("start", language="pyspark", text=text, **launch)
    until(lambda: not [each for each in spark.streams.active if each.name == "two"])
    found = {name: sorted(row.seconds for row in spark.read.json(str(tmp_path / name)).collect()) for name in ("long", "short")}
    assert found == {"long": [30, 60], "short": [10]}
