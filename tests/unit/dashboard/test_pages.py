"""What the monitor says about a history: rates, percentiles, health, series of any length, and faults."""

from __future__ import annotations

import http.client
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli import app, run
from headrace.dashboard.kept import matching
from headrace.dashboard.pages.faults import faults_of
from headrace.dashboard.queries import ENDED, FAILED, GONE, Queries
from headrace.dashboard.series import series
from headrace.dashboard.summary import health, percentiles, rate, summary
from tests.unit.dashboard.recorded import BEGIN_S, Client, checkpoint, point, served


def test_a_query_in_one_line(tmp_path: Path) -> None:
    (shown,) = Queries([str(checkpoint(tmp_path / "ckpt"))]).all()
    told = summary(shown)
    assert (told["name"], told["state"], told["version"], told["instances"]) == ("sums", ENDED, 20, {"sum": 2})
    assert told["rate"] == pytest.approx(1000, rel=0.05)
    assert (told["share"], told["stateRows"], told["backlog"]) == (1.0, 77, 0)


def test_percentiles_are_those_of_the_rows() -> None:
    slow, quick = point(1, rows=10, lat=9000.0, latMin=9000.0), point(2, rows=990, lat=100.0, latMin=100.0)
    assert percentiles([slow, quick]) == {"p50": 100.0, "p95": 100.0, "p99": 100.0}
    assert percentiles([{**slow, "rows": 600}, {**quick, "rows": 400}]) == {"p50": 9000.0, "p95": 9000.0, "p99": 9000.0}
    assert percentiles([point(1, rows=0)]) is None
    assert rate([]) == (None, None)


@pytest.mark.parametrize(
    ("events", "state", "level", "words"),
    [
        ((), ENDED, "off", "ended"),
        (({"t": BEGIN_S + 30, "kind": "end", "error": "BatchFailedError: no"},), FAILED, "bad", "failed: BatchFailedError: no"),
        (({"t": BEGIN_S + 30, "kind": "start", "runId": "2"},), GONE, "bad", "its process is gone"),
    ],
)
def test_how_a_query_ended(tmp_path: Path, events: tuple[dict[str, Any], ...], state: str, level: str, words: str) -> None:
    folder = checkpoint(tmp_path / "ckpt")
    with open(folder / "headrace" / "history" / "events.jsonl", "a") as file:
        file.writelines(json.dumps(each) + "\n" for each in events)
    (shown,) = Queries([str(folder)]).all()
    assert shown.state == state
    found = health(shown, shown.state)
    assert found[0] == level
    assert words in found[1]


@pytest.mark.parametrize(
    ("points", "level", "words"),
    [
        ([point(at) for at in range(1, 20)], "good", "keeps up"),
        ([point(at, wait=at * 5000) for at in range(1, 20)], "bad", "the backlog grew from 5,000 to 95,000 rows"),
        ([point(at, busy=1.4) for at in range(1, 20)], "warn", "utilisation 140%"),
        ([point(at, share=0.8) for at in range(1, 20)], "warn", "20.0% of the rows"),
        ([], "warn", "no batch has ended yet"),
    ],
)
def test_the_health_of_a_running_query(tmp_path: Path, points: list[dict[str, Any]], level: str, words: str) -> None:
    (shown,) = Queries([str(checkpoint(tmp_path / "ckpt", points=0))]).all()
    shown.points = points
    found = health(shown, "running")
    assert (found[0], words in found[1]) == (level, True), found


def test_a_process_that_is_gone_is_not_taken_for_running(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "ckpt")
    (folder / "headrace" / "control.json").write_text('{"port": 1, "token": "x", "process": 4194303}')
    (shown,) = Queries([str(folder)]).all()
    assert shown.state == GONE


def test_a_folder_that_was_removed_is_not_taken_for_a_process_that_is_gone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "ckpt")
    with open(folder / "headrace" / "history" / "events.jsonl", "a") as file:
        file.write(json.dumps({"t": BEGIN_S + 30, "kind": "start", "runId": "2"}) + "\n")
    known = Queries([str(folder)])
    (shown,) = known.all()
    assert shown.state == GONE
    shutil.rmtree(folder)
    assert (shown.state, health(shown, shown.state)) == (ENDED, ("off", "its checkpoint's folder was removed: nothing of it is kept"))


def test_charts_are_interrupted_where_the_query_did_not_run() -> None:
    before, after = [point(at) for at in range(1, 4)], [point(at) for at in range(200, 203)]
    found = series([*before, *after])
    assert len(found["t"]) == 7
    assert found["t"] == sorted(found["t"])
    assert [found[name][3] for name in ("rate", "rateOut", "ms", "lat")] == [None] * 4
    assert found["operators"]["sum"]["instances"][2:5] == [2, None, 2]
    assert all(each is not None for at, each in enumerate(found["rate"]) if at != 3)


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ({"k": "null"}, [2]),
        ({"k": '"null"'}, [1]),
        ({"k": '""'}, [3]),
        ({"k": "ada"}, [0]),
        ({"n": "9223372036854775801"}, [1]),
        ({"n": "null"}, [3]),
    ],
)
def test_rows_are_looked_up_by_values_as_text(wanted: dict[str, str], rows: list[int]) -> None:
    of = pa.record_batch(
        {
            "at": [0, 1, 2, 3],
            "k": pa.array(["ada", "null", None, ""], pa.large_string()),
            "n": pa.array([9223372036854775800, 9223372036854775801, 0, None], pa.int64()),
        }
    )
    assert matching(of, wanted).column("at").to_pylist() == rows


def test_series_of_any_length_have_few_points_and_keep_peaks_and_sums() -> None:
    points = [point(at, ms=9999.0 if at == 5000 else 500.0) for at in range(1, 10_001)]
    found = series(points)
    assert len(found["t"]) <= 1000
    assert max(found["ms"]) == 9999.0
    assert sum(rate * span for rate, span in zip(found["rate"], found["span"], strict=True)) == pytest.approx(10_000_000, rel=0.01)
    assert found["operators"]["sum"]["rowsIn"][5] == pytest.approx(1000)
    later = series(points, points[-3]["t"])
    assert later["v"] == [9999, 10_000]
    assert later["rate"] == [1000.0, 1000.0]
    assert series([])["t"] == []


def test_the_stream_says_what_is_there_and_what_comes(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "ckpt")
    server = served(folder)
    try:
        client = Client(server).bearer()
        name = client.get("/api/queries")["queries"][0]["id"]
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        connection.request("GET", f"/api/stream?query={name}&since={BEGIN_S + 20}", headers={"Authorization": f"Bearer {server.token}"})
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        assert answer.readline() == b"event: queries\n"
        assert json.loads(answer.readline().partition(b": ")[2])[0]["id"] == name
        with open(folder / "headrace" / "history" / "points.jsonl", "a") as file:
            file.write(json.dumps(point(21)) + "\n")
        while (line := answer.readline()) != b"event: batch\n" or (body := _data(answer.readline()))["series"]["v"] != [21]:
            assert line, "the stream ended"
        assert body["events"] == []
        connection.close()
    finally:
        server.stop()


def test_drops_are_summed_by_branch_and_what_a_query_does_not_have_is_absent(tmp_path: Path) -> None:
    places = {"calls": {"arrived": 100, "shed": 30, "threshold": 5}}
    shedding = {"plan": 3, "places": places, "sinks": [{"sink": "json", "weight": 2.0, "delivered": 0.7}], "deadlineMs": 4000.0}
    whole = {"headrace": {"version": 1, "shedding": shedding, "checkpoint": None, "replicas": None, "instances": []}}
    lost = {"t": BEGIN_S + 3, "kind": "redundancy", "missing": 0, "lastedMs": 1500}
    (shown,) = Queries([str(checkpoint(tmp_path / "ckpt", batches=(whole, whole), events=(lost,)))]).all()
    found = faults_of(shown)
    assert found["shed"] == {"batches": 2, "places": {"calls": {"arrived": 200, "shed": 60}}}
    assert found["shedding"]["sinks"][0]["delivered"] == 0.7
    assert found["withoutRedundancyMs"] == 1500
    assert [found[name] for name in ("executors", "checkpoints", "checkpoint", "replicas")] == [None] * 4
    (quiet,) = Queries([str(checkpoint(tmp_path / "quiet"))]).all()
    assert (faults_of(quiet)["shed"], faults_of(quiet)["withoutRedundancyMs"], faults_of(quiet)["gaps"]) == (None, None, [])


ASKED = ["/api/stream?since=x", "/api/stream?query=nothing", "/api/queries/{name}/series?minutes=x", "/api/queries/{name}/batches/99"]


@pytest.mark.parametrize("path", ASKED)
def test_what_cannot_be_asked_is_refused_in_words(tmp_path: Path, path: str) -> None:
    server = served(checkpoint(tmp_path / "ckpt"))
    try:
        client = Client(server).bearer()
        name = client.get("/api/queries")["queries"][0]["id"]
        status, _, text = client.send("GET", path.format(name=name))
        assert status == 400
        assert "wanted" in json.loads(text)["error"]
    finally:
        server.stop()


def _data(line: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.partition(b": ")[2])
    return found


def test_a_checkpoint_without_history_is_shown_and_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "old" / "headrace").mkdir(parents=True)
    (tmp_path / "old" / "headrace" / "query.json").write_text("{}")
    (shown,) = Queries([str(tmp_path / "old")]).all()
    assert summary(shown)["health"] == "ended before its first batch, or without a history"
    assert run(app, ["report", str(tmp_path / "old"), "--out", str(tmp_path / "r.html")]) == 2


def test_a_report_is_one_page_with_everything_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"t": BEGIN_S + 3, "kind": "lost", "v": 3, "executors": ["7"], "hung": False, "afterMs": 100.0, "recoveredMs": 2500.0}
    folder = checkpoint(tmp_path / "ckpt", name="<script>x</script>", events=(lost,), points=2000)
    assert run(app, ["report", str(folder), "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "executor 7 lost; recovered in 2.5 s" in text
    assert text.count("<svg") >= 6
    assert "2,000,000" in text
