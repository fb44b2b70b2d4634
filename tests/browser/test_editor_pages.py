"""The query editor in a real browser: texts, the drawing, a sample, a start and a replacement, with every button pressed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.dashboard import live
from tests.browser.test_monitor_pages import WAIT_MS, press, until

pytestmark = pytest.mark.spark

EVIL = "<script>document.title='stolen'</script>"
ROWS = [("ada", 60, 0), ("bob", 10, 1), ("ada", 30, 2)]


@pytest.fixture(scope="module")
def url(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The editor with two streams: files, one of whose columns is HTML, and rows that never end."""
    folder = tmp_path_factory.mktemp("editor") / "calls"
    folder.mkdir()
    for at, (src, seconds, minute) in enumerate(ROWS):
        row = {"src": src, "seconds": seconds, "ts": f"2024-01-01 00:0{minute}:00", EVIL: "<b>x</b>"}
        (folder / f"{at}.json").write_text(json.dumps(row) + "\n")
    before = live._server, live._process
    live._server = None
    spark.conf.set("headrace.ui.editor", "true")
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load().selectExpr("value % 4 AS k", "timestamp AS at")
    calls = spark.readStream.schema(f"src string, seconds long, ts timestamp, `{EVIL}` string").json(str(folder))
    yield hr.editor(spark, calls=calls, ticks=ticks)
    for each in spark.streams.active:
        if each.name == "from the page":
            each.stop()
    spark.conf.unset("headrace.ui.editor")
    for name in ("calls", "ticks"):
        spark.catalog.dropTempView(name)
    assert live._server is not None
    live._server.stop()
    live._server, live._process = before


@pytest.fixture
def page(chromium: Any, url: str) -> Iterator[Any]:
    """The editor, opened by its URL. Fails the test if the browser complains about anything."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(url)
    tab.wait_for_selector("#streams details")
    tab.wait_for_selector(".cm-content")
    yield tab
    found = [each for each in complaints if "status of 400" not in each]
    context.close()
    assert not found, found


def write(page: Any, text: str) -> None:
    """Type a text in the place of the one that is there."""
    page.click(".cm-content")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)


def choose(page: Any, within: str, label: str, value: str) -> None:
    page.select_option(f"{within} .field:has-text('{label}') select", value)


def fill(page: Any, label: str, value: str) -> None:
    """Fill in a property of the chosen box."""
    page.fill(f"#properties .field:has(span:text-is('{label}')) :is(input, textarea)", value)


def box(page: Any, kind: str) -> None:
    page.click(f".palette button:text-is('{kind}')")
    page.wait_for_selector(f"#properties h2:has-text('{kind}')")


def text_of(page: Any) -> str:
    return "\n".join(each.inner_text().rstrip("\n") for each in page.query_selector_all(".cm-line"))


def good(page: Any, part: str) -> None:
    """Wait until the page says that the query can run, with this among its columns."""
    page.wait_for_selector(f"#checked.good:has-text('{part}')")
    until(page, lambda: page.is_enabled("#sample button.primary"))


@pytest.mark.extra
def test_a_text_is_completed_checked_and_tried(page: Any) -> None:
    page.click(".cm-content")
    page.keyboard.type("SELECT src, sum(seco")
    page.wait_for_selector(".cm-tooltip-autocomplete li:has-text('seconds')")
    page.click(".cm-tooltip-autocomplete li:has-text('bigint · calls')")
    page.keyboard.type(") AS total FROM cal")
    page.wait_for_selector(".cm-tooltip-autocomplete li:has-text('stream')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#checked.bad:has-text('line 1')")
    page.wait_for_selector(".cm-lintRange-error")
    page.keyboard.type("ls GROUP BY src")
    page.keyboard.press("Escape")
    page.wait_for_selector("#checked.bad:has-text('In output mode update or complete it can run')")
    choose(page, "#query-text", "output mode", "complete")
    good(page, "total bigint")
    page.click("#plan .stateful")
    page.wait_for_selector("#plan pre:has-text('Python over Arrow')")
    for each in ("which part runs where", "what it costs"):
        page.click(f"#plan summary:has-text('{each}')")
    assert "operator-set-cloud" in page.inner_text("#plan")
    page.click("#sample button:text-is('run on a sample')")
    page.wait_for_selector("#sample tbody tr")
    cells = [[cell.inner_text() for cell in row.query_selector_all("td")][1:] for row in page.query_selector_all("#sample tbody tr")]
    assert sorted(cells) == [["ada", "90"], ["bob", "10"]]
    assert "3 rows in 3 batches" in page.inner_text("#sample")
    # Names and values that are HTML are texts.
    write(page, "SELECT * FROM calls")
    choose(page, "#query-text", "output mode", "append")
    good(page, "document.title")
    page.click("#sample button:text-is('run on a sample')")
    page.wait_for_selector("#sample td:has-text('<b>x</b>')")
    assert page.query_selector("main script, main b:text-is('x')") is None
    assert page.title() == "Editor · Headrace"
    # A stream's columns are put into the text by their buttons, and the text is there again after a reload.
    page.click("#streams button:text-is('src')")
    page.wait_for_selector("#checked.bad, #checked.good:has-text('src')")
    assert text_of(page) == "SELECT * FROM calls src"
    page.reload()
    page.wait_for_selector(".cm-line:has-text('calls src')")


def test_a_pyspark_text_that_does_things_waits(page: Any, tmp_path: Path) -> None:
    # A column whose name is HTML is shown as text.
    page.wait_for_selector("#streams button:has-text('document.title')")
    assert page.query_selector("main script") is None
    assert page.title() == "Editor · Headrace"
    page.click("button[role=tab]:text-is('PySpark')")
    write(page, "calls.filter('sec > 3')")
    page.wait_for_selector("#checked.bad:has-text('`sec` cannot be resolved')")
    touched = tmp_path / "touched"
    write(page, f"open({str(touched)!r}, 'w').close()\ncalls.filter('seconds > 3')")
    page.wait_for_selector("#checked.warn:has-text('line 1: open')")
    assert not touched.exists()
    page.click("#checked button:text-is('check')")
    good(page, "src string")
    assert touched.exists()
    # With the keyboard: Ctrl-Enter checks, too.
    write(page, "import time\nticks.filter('k > 1')")
    page.wait_for_selector("#checked.warn:has-text('import time')")
    page.keyboard.press("Control+Enter")
    good(page, "k bigint")


def draw_totals(page: Any) -> None:
    """Draw a source, a split, an aggregate of its first branch, and a sink; each new box reads the one before."""
    page.click("button[role=tab]:text-is('Drawing')")
    page.wait_for_selector("#checked:has-text('Nothing is drawn yet')")
    box(page, "source")
    choose(page, "#properties", "stream", "calls")
    fill(page, "name", "calls")
    fill(page, "time column", "ts")
    fill(page, "rows may be late by", "1 hour")
    box(page, "split")
    fill(page, "branches, one a line: a row takes the first whose condition holds", "long: seconds > 20")
    box(page, "aggregate")
    choose(page, "#properties", "window", "tumbling")
    fill(page, "of time", "ts")
    fill(page, "size", "1 minute")
    fill(page, "keys", "src")
    page.wait_for_selector("#properties .chips button:text-is('seconds')")
    choose(page, "#properties .row", "function", "sum")
    choose(page, "#properties .row", "of", "seconds")
    page.click("#properties button:text-is('add')")
    box(page, "sink")
    fill(page, "name", "totals_out")


def draw_filter(page: Any) -> None:
    """With the mouse: drag a filter into the drawing, and an arrow from the split's other branch to it."""
    frame = page.query_selector(".canvas svg").bounding_box()
    button = page.query_selector(".palette button:text-is('filter')").bounding_box()
    drag(page, (button["x"] + 5, button["y"] + 5), (frame["x"] + 330, frame["y"] + 220))
    fill(page, "condition", "")
    page.keyboard.insert_text("src = '")
    page.keyboard.insert_text("bob'")
    start = page.query_selector(".canvas [data-branch='else']").bounding_box()
    end = page.query_selector(".box.filter .port.in").bounding_box()
    drag(page, (start["x"] + 6, start["y"] + 6), (end["x"] + 6, end["y"] + 6))
    page.wait_for_selector(".canvas .edge[aria-label='filtered reads parts, else']")
    place = page.get_attribute(".box.filter rect", "x")
    drag(page, (end["x"] + 60, end["y"] + 20), (end["x"] + 120, end["y"] + 40))
    assert page.get_attribute(".box.filter rect", "x") != place


@pytest.mark.extra
def test_boxes_and_arrows_become_a_text(page: Any) -> None:
    draw_totals(page)
    choose(page, "#query-text .drawn", "as", "pyspark")
    good(page, "sum_seconds bigint")
    assert text_of(page).splitlines() == [
        'calls = calls.withWatermark("ts", "1 hour")',
        'parts_long = calls.filter("coalesce(seconds > 20, false)")',
        'parts_else = calls.filter("NOT coalesce(seconds > 20, false)")',
        'totals = parts_long.groupBy(F.window("ts", "1 minute"), "src").agg(F.expr("sum(seconds) AS sum_seconds"))',
        "result = totals",
    ]
    draw_filter(page)
    # With the keyboard: to the box, move it, a sink behind it, connected among its properties.
    page.focus(".box.filter")
    before = int(page.get_attribute(".box.filter rect", "y"))
    page.keyboard.press("ArrowDown")
    until(page, lambda: int(page.get_attribute(".box.filter rect", "y")) == before + 10)
    box(page, "sink")
    fill(page, "name", "rest")
    choose(page, "#properties", "format", "json")
    choose(page, "#properties", "reads", "")
    page.wait_for_selector("#checked.bad:has-text('a sink needs one input')")
    page.select_option("#properties .field:has-text('reads') select", label="filtered")
    good(page, "rest:")
    assert 'result = {\n    "totals_out": totals,\n    "rest": filtered,\n}' in text_of(page)
    assert page.query_selector("#start fieldset:has-text('sink rest') .field:has-text('folder')")


@pytest.mark.extra
def test_a_drawing_with_mistakes_is_mended(page: Any) -> None:
    """An SQL text has one result, and this is said at the box that is too much. Boxes and arrows are removed, and come back."""
    draw_totals(page)
    draw_filter(page)
    box(page, "sink")
    choose(page, "#query-text .drawn", "as", "sql")
    page.wait_for_selector("#checked.bad:has-text('one result')")
    page.wait_for_selector(".canvas .box.sink.wrong")
    page.focus(".box.sink.wrong")
    page.keyboard.press("Delete")
    good(page, "sum_seconds bigint")
    page.click(".palette button:text-is('undo')")
    page.wait_for_selector(".canvas .box.sink.wrong")
    page.focus(".box.sink.wrong")
    page.click(".palette button:text-is('delete')")
    page.focus(".canvas .edge[aria-label='filtered reads parts, else']")
    page.keyboard.press("Delete")
    page.wait_for_selector("#checked.bad button:text-is('filter filtered')")
    page.click("#checked.bad button:text-is('filter filtered')")
    page.wait_for_selector("#properties h2:has-text('filtered')")
    page.focus(".box.filter")
    page.keyboard.press("Delete")
    good(page, "sum_seconds bigint")


@pytest.mark.extra
def test_a_drawing_is_there_again_after_a_reload_and_scrolls_on_a_telephone(page: Any) -> None:
    draw_totals(page)
    choose(page, "#query-text .drawn", "as", "sql")
    good(page, "sum_seconds bigint")
    page.reload()
    page.wait_for_selector(".canvas .box.aggregate")
    page.set_viewport_size({"width": 390, "height": 900})
    page.focus(".box.aggregate")
    page.keyboard.press("Enter")
    until(page, lambda: page.evaluate("document.activeElement.closest('#properties') !== null"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.click("button:text-is('go on with this text')")
    page.wait_for_selector("button[role=tab][aria-selected=true]:text-is('SQL')")
    assert "sum(seconds) AS sum_seconds" in text_of(page)
    good(page, "sum_seconds bigint")


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=5)
    page.mouse.up()


@pytest.mark.extra
def test_a_query_is_started_and_replaced_from_the_page(page: Any, spark: SparkSession, tmp_path: Path) -> None:
    choose(page, "#query-text", "output mode", "update")
    write(page, "SELECT k, count(*) AS n FROM ticks WHERE k > 7 GROUP BY k")
    good(page, "n bigint")
    page.click("#sample button:text-is('run on a sample')")
    page.click("#sample button:text-is('cancel')")
    page.wait_for_selector("#sample .said.bad:has-text('it was cancelled')")
    write(page, "SELECT k, count(*) AS n FROM ticks GROUP BY k")
    good(page, "n bigint")
    page.fill("#start .field:has(span:text-is('name')) input", "from the page")
    page.fill("#start .field:has(span:text-is('checkpoint')) input", str(tmp_path / "ckpt"))
    choose(page, "#start", "runs", "every")
    page.fill("#start .field:has(span:text-is('time')) input", "200 milliseconds")
    page.fill("#start .field:has(span:text-is('options of the query, one a line')) textarea", "headrace.ui=false")
    page.click("#start button:text-is('start')")
    page.wait_for_selector("#start .said.bad:has-text('which the editor sets itself')")
    page.fill("#start .field:has(span:text-is('options of the query, one a line')) textarea", "headrace.instances=1")
    page.click("#start button:text-is('start')")
    page.wait_for_selector("#start .said.good:has-text('from the page was started')")
    (query,) = [each for each in spark.streams.active if each.name == "from the page"]
    # Before its first version it has no state that a change could keep.
    until(page, lambda: bool(query.lastProgress) and query.lastProgress["batchId"] >= 1)
    # Another plan for it: not without a dry run, and only as it was tried.
    page.wait_for_selector("#replace")
    write(page, "SELECT src, count(*) AS n FROM calls GROUP BY src")
    good(page, "src string")
    assert page.is_disabled("#replace button:text-is('replace')")
    assert "source" in press(page, "#replace", "dry run")
    write(page, "SELECT k, count(*) AS n, max(at) AS newest FROM ticks GROUP BY k")
    good(page, "newest timestamp")
    assert "nothing was changed" in press(page, "#replace", "dry run")
    page.wait_for_selector("#replace .outcome dd:has-text('added: max')")
    page.check("#replace input[type=checkbox]")
    until(page, lambda: page.is_disabled("#replace button:text-is('replace')"))
    page.uncheck("#replace input[type=checkbox]")
    assert "nothing was changed" in press(page, "#replace", "dry run")
    until(page, lambda: page.is_enabled("#replace button:text-is('replace')"))
    assert "Replaced: the pause took" in press(page, "#replace", "replace")
    page.click("#replace a:text-is('its page')")
    page.wait_for_selector("#graph svg")
    assert re.search("from the page", page.title())
    assert query.name == "from the page"
    page.click("a.to-editor")
    page.wait_for_selector(".cm-line:has-text('newest')")
