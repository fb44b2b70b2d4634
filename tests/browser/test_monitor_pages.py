"""Every page and every button of the monitor, in a real browser, on a real query that runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr

pytestmark = pytest.mark.spark

NAME = "orders <script>document.title='stolen'</script>"
PAGES = {"": "#graph svg", "state": "#slots canvas", "elasticity": "#decisions", "faults": "#promise"}
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def query(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hr.HeadraceQuery]:
    """Two operators in a row, elastic, with a name that is HTML."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).load()
    stream = hr.stream(rows.select((F.col("value") % 50).alias("k"), F.lit("<b>x</b>").alias("html"), "timestamp"))
    counted = stream.withWatermark("timestamp", "1 second").groupBy("k", "html", F.window("timestamp", "2 seconds")).count()
    again = counted.groupBy("html").agg(F.sum("count").alias("total"))
    writer = again.writeStream.outputMode("update").format("noop").queryName(NAME)
    writer = writer.options(**{"headrace.instances": 2, "headrace.ui": True, "headrace.versionsToKeep": 500})
    # The policy looks, and never has a reason to act, so that only the test changes anything.
    policy = hr.Elastic(policy="load-balancer", min=1, max=8, period_s=0.5, imbalance_max=1.0)
    place = str(tmp_path_factory.mktemp("monitor") / "ckpt")
    running = writer.option("checkpointLocation", place).elastic(policy).trigger(processingTime="500 milliseconds").start()
    # The second operator has rows as soon as the first window has closed.
    while not any(each["numRowsTotal"] for each in (running.lastProgress or {}).get("stateOperators", [{}])[-1:] if each):
        running.awaitTermination(0.2)
    yield running
    running.stop()


@pytest.fixture
def page(chromium: Any, query: hr.HeadraceQuery) -> Iterator[Any]:
    """The monitor, open at the query. Fails the test if the browser complains about anything."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(query.ui)
    tab.wait_for_selector("#graph svg")
    tab.complaints = complaints
    yield tab
    found = [each for each in complaints if "status of 400" not in each]
    context.close()
    assert not found, found


def go(page: Any, name: str, wanted: str) -> None:
    """Open a page about the query by its link in the navigation."""
    if name:
        page.click(f"nav a[href$='/{name}']")
    page.wait_for_selector(wanted)


def until(page: Any, found: Callable[[], bool]) -> None:
    """Wait for something that no selector says. The page's policy forbids to evaluate a function in it again and again."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not found():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        page.wait_for_timeout(100)


def said(page: Any, within: str) -> str:
    """What came of a button that was pressed."""
    page.wait_for_selector(f"{within} .said")
    return str(page.inner_text(f"{within} .said"))


def press(page: Any, within: str, label: str) -> str:
    """Press a button, and return what came of it."""
    if page.query_selector(f"{within} .said button"):
        page.click(f"{within} .said button")
    page.click(f"{within} button:text-is('{label}')")
    return said(page, within)


def place_of_chart(page: Any) -> tuple[float, float, float]:
    """Left edge, width and middle of the first chart, in pixels of the window."""
    over = page.query_selector("#series .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    return box["x"], box["width"], box["y"] + box["height"] / 2


def shown_seconds(page: Any) -> int:
    """The time between the first and the last batch in the first chart, as its cursor says it."""
    left, width, middle = place_of_chart(page)
    ends = []
    for x in (left + 1, left + width - 2):
        page.mouse.move(x, middle)
        hours, minutes, seconds = map(int, page.inner_text("#series .when").split(":"))
        ends.append(3600 * hours + 60 * minutes + seconds)
    return (ends[1] - ends[0]) % 86_400


def test_every_page_fits_and_shows_names_as_text(page: Any, query: hr.HeadraceQuery) -> None:
    assert "token" not in page.url
    assert page.context.cookies()[0]["httpOnly"]
    assert page.context.cookies()[0]["sameSite"] == "Strict"
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for name, wanted in PAGES.items():
            page.goto(page.url.partition("#")[0] + "#/" + re.findall(r"#/([^/]+)", str(query.ui))[0] + (f"/{name}" if name else ""))
            page.wait_for_selector(wanted)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width} is too wide"
            assert not page.query_selector("main script, main b:text-is('x')")
    page.click("a.brand")
    page.wait_for_selector("#queries td a")
    names = [each.inner_text() for each in page.query_selector_all("#queries td a")]
    assert NAME in names
    assert "stolen" not in page.title().replace(NAME, "")
    # With the keyboard alone: to the query, and to a box of its graph.
    page.focus(f"#queries a[href='#/{re.findall(r'#/([^/]+)', str(query.ui))[0]}']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#graph .stateful")
    page.focus("#graph .stateful")
    page.keyboard.press("Enter")
    page.wait_for_selector("#node pre")
    assert "Python over Arrow" in page.inner_text("#node pre")


def test_without_the_cookie_the_page_says_so(chromium: Any, query: hr.HeadraceQuery) -> None:
    context = chromium.new_context()
    tab = context.new_page()
    tab.goto(re.sub(r"\?token=[^#]*", "", str(query.ui)))
    tab.wait_for_selector(".said.bad")
    assert "the monitor's token" in tab.inner_text(".said.bad")
    context.close()


def test_the_query_page_is_live(page: Any, query: hr.HeadraceQuery) -> None:
    page.wait_for_selector("#series canvas")
    assert len(page.query_selector_all("#graph .node")) == len(page.query_selector_all("#graph .node rect")) >= 4
    version = int(re.findall(r"\d+", page.inner_text("header .quiet"))[0])
    until(page, lambda: int(re.findall(r"\d+", page.inner_text("header .quiet"))[0]) >= version + 2)
    assert "rows/s" in page.text_content("#graph .stateful")
    last = query.lastProgress
    assert last is not None
    page.fill("#phases input", str(last["batchId"] - 1))
    page.wait_for_selector(f"#phases p:has-text('Batch {last['batchId'] - 1}:')")
    names = [each.inner_text() for each in page.query_selector_all("#phases .what")]
    assert {"plan", "job", "commit", "deliver"} <= set(names)
    assert len(page.query_selector_all("#instances tbody tr")) >= 2
    for theme in ("dark", "light"):
        page.click("header button.plain")
        page.wait_for_selector(f"html[data-theme={theme}]")
    page.click("header button.plain")
    page.wait_for_selector("html:not([data-theme])")
    page.select_option("header .field:has-text('last') select", "5")
    page.wait_for_selector("#series canvas")
    # Drag over the middle of a chart to look closer; a double click goes back.
    before = shown_seconds(page)
    left, width, middle = place_of_chart(page)
    page.mouse.move(left + 0.4 * width, middle)
    page.mouse.down()
    page.mouse.move(left + 0.6 * width, middle, steps=4)
    page.mouse.up()
    until(page, lambda: shown_seconds(page) <= before / 2)
    page.mouse.dblclick(left + width / 2, middle)
    until(page, lambda: shown_seconds(page) >= before)
    # To the overview and back, by the choice of queries.
    chosen = page.eval_on_selector("header .pick select", "each => each.value")
    page.select_option("header .pick select", "")
    page.wait_for_selector("#queries td a")
    page.select_option("header .pick select", chosen)
    page.wait_for_selector("#graph svg")


def test_every_button_of_elasticity_does_what_it_says(page: Any, query: hr.HeadraceQuery) -> None:
    go(page, "elasticity", "#hand")
    before = query.routing()
    page.select_option("#hand .field:has-text('operator') select", "aggregate")
    count = before["aggregate"].instances
    for _ in range(2):
        page.click("#hand button[aria-label='one instance more']")
    page.click("#hand button[aria-label='one instance less']")
    assert page.input_value("#hand .field:has-text('instances') input") == str(count + 1)
    page.select_option("#hand .field:has-text('protocol') select", "state recreation")
    assert "Nothing was changed" in press(page, "#hand", "dry run")
    assert query.routing() == before
    assert f"{count} → {count + 1} instances" in press(page, "#hand", "rescale")
    assert query.routing()["aggregate"].instances == count + 1
    assert query.routing()["aggregate-2"] == before["aggregate-2"]
    assert "aggregate" in press(page, "#hand", "rebalance")
    page.wait_for_selector("#hand p:has-text('Left alone by the policy: aggregate')")
    page.wait_for_selector("#decisions td:has-text('rescale to')")
    assert "decides again" in press(page, "#hand", "hand back to the policy")
    page.wait_for_selector("#decisions td:has-text('the policy decides again')")
    shown = len(page.query_selector_all("#decisions tbody tr"))
    page.check("#decisions input[type=checkbox]")
    until(page, lambda: len(page.query_selector_all("#decisions tbody tr")) > shown)
    page.select_option("#whatif select", "rates")
    page.fill("#whatif .field:has-text('target') input", "0.01")
    page.fill("#whatif .field:has-text('max') input", "3")
    assert "as it would have been" in press(page, "#whatif", "replay")
    page.wait_for_selector("#whatif .charts canvas")
    page.fill("#whatif .field:has-text('min') input", "9")
    assert "min" in press(page, "#whatif", "replay")


def test_slots_are_moved_and_spread_and_state_is_looked_up(page: Any, query: hr.HeadraceQuery) -> None:
    go(page, "state", "#slots canvas")
    page.select_option("#slots .field:has-text('operator') select", "aggregate")
    page.wait_for_selector("#slots h2:has-text('Slots of aggregate')")
    page.focus("#slots canvas")
    for key in ("ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    page.wait_for_selector("#slots span:has-text('slots 1–65')")
    to = 1 - int(query.routing()["aggregate"].table()[1])
    assert "belong to instance" in press(page, "#slots", f"move to {to}")
    assert set(query.routing()["aggregate"].table()[1:66].tolist()) == {to}
    # One slot is cut in two.
    page.focus("#slots canvas")
    page.keyboard.press("ArrowRight")
    slot = int(re.search(r"slot (\d+):", page.inner_text("#slots span:has-text('slot ')")).group(1))  # type: ignore[union-attr]
    assert f"Slot {slot} is cut" in press(page, "#slots", "split")
    pieces = [(low, high) for ranges in query.routing()["aggregate"].to_json()["ranges"] for low, high in ranges]
    assert any(slot + 0.5 in piece for piece in pieces), pieces
    # Drag over slots with the mouse, then drag them to an instance.
    box = page.query_selector("#slots canvas").bounding_box()
    line = box["height"] / 64
    page.mouse.move(box["x"] + 3, box["y"] + 20.5 * line)
    page.mouse.down()
    page.mouse.move(box["x"] + 3, box["y"] + 22.5 * line, steps=4)
    page.mouse.up()
    page.wait_for_selector("#slots span:has-text('slots 1280–1408')")
    giver = int(query.routing()["aggregate"].table()[1300])
    target = page.query_selector(f"#slots table [data-instance='{1 - giver}']").bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 21.5 * line)
    page.mouse.down()
    page.mouse.move(target["x"] + 4, target["y"] + 4, steps=4)
    page.mouse.up()
    page.wait_for_selector("#slots .said:has-text('slots 1280–1408')")
    assert int(query.routing()["aggregate"].table()[1300]) == 1 - giver
    press(page, "#slots", "spread")
    assert query.routing()["aggregate"].spread == ((1280, 1409),)
    page.wait_for_selector("#slots button:text-is('end spreading')")
    press(page, "#slots", "end spreading")
    assert query.routing()["aggregate"].spread == ()
    assert "Dry run" in press(page, "#slots", "dry run")
    assert "shared out anew" in press(page, "#slots", "rebalance")
    # A key and its value at a kept version are those of the query itself.
    version = query.lastProgress["batchId"]  # type: ignore[index]
    page.select_option("#browse .field:has-text('state of') select", "aggregate-2")
    page.select_option("#browse .field:has-text('version') select", str(version))
    page.fill("#browse .field:has-text('html') input", "<b>x</b>")
    page.click("#browse button:text-is('look up')")
    page.wait_for_selector("#browse td:has-text('<b>x</b>')")
    (row,) = query.state("aggregate-2", version).collect()
    assert str(row[-1]) in page.inner_text("#browse tbody tr")
    # Pages of a state of more rows than one page has.
    page.select_option("#browse .field:has-text('state of') select", "aggregate")
    page.wait_for_selector("#browse .note:has-text('rows 1 to 20 of')")
    firsts = page.inner_text("#browse tbody")
    page.click("#browse button:text-is('more')")
    page.wait_for_selector("#browse .note:has-text('rows 21 to 40 of')")
    assert page.inner_text("#browse tbody") != firsts
    page.click("#browse button:text-is('back')")
    page.wait_for_selector("#browse .note:has-text('rows 1 to 20 of')")
    assert page.inner_text("#browse tbody") == firsts
    page.select_option("#browse .field:has-text('state of') select", "aggregate-2")
    page.fill("#browse .field:has-text('html') input", "nobody")
    page.click("#browse button:text-is('look up')")
    page.wait_for_selector("#browse .empty")
    page.select_option("#difference .field:has-text('state of') select", "aggregate")
    page.select_option("#difference .field:has-text('from') select", str(version - 1))
    page.select_option("#difference .field:has-text('to') select", str(version))
    assert f"Version {version - 1} to {version}:" in press(page, "#difference", "compare")
    for which in ("from", "to"):
        page.select_option(f"#difference .field:has-text('{which}') select", "")
    assert re.search(r"[\d,]+ came, [\d,]+ went, [\d,]+ changed", press(page, "#difference", "compare"))
    page.click("[id='runs-aggregate'] summary")
    page.wait_for_selector("[id='runs-aggregate'] tbody tr")


def test_an_ended_query_is_shown_without_buttons_that_cannot_work(chromium: Any, spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    writer = hr.stream(rows).groupBy((F.col("value") % 3).alias("k")).count().writeStream.outputMode("update").format("noop")
    ended = writer.option("checkpointLocation", str(tmp_path / "ckpt")).option("headrace.ui", True).queryName("short").start()
    while (ended.lastProgress or {}).get("batchId", 0) < 3:
        ended.awaitTermination(0.2)
    ended.stop()
    context = chromium.new_context()
    tab = context.new_page()
    tab.goto(str(ended.ui))
    tab.wait_for_selector("header .state.ended")
    tab.wait_for_selector("#series canvas")
    go(tab, "elasticity", "#whatif")
    assert tab.query_selector("#hand") is None
    assert tab.query_selector("#decisions") is None, "the query has no policy"
    go(tab, "state", "#slots canvas")
    assert tab.query_selector("#slots .row") is None
    tab.wait_for_selector("#browse tbody tr")
    go(tab, "faults", "#promise")
    assert tab.query_selector("#executors, #shedding, #checkpoints") is None, "the query has none of these"
    context.close()
