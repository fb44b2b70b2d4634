"""The monitor of a query on real executors, one of which is killed, in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import ROOT
from tests.work_folders import remove_work_folders

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(600)]
WAIT_MS = 120_000


@pytest.fixture
def program(chromium: Any, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.browser.on_executors", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        yield running
        # The end of its input.
        running.communicate(timeout=120)
    # Executors of local-cluster leave their folders with Spark itself.
    remove_work_folders()
    assert running.returncode == 0, (tmp_path / "log").read_text()[-3000:]


def executors(page: Any) -> dict[str, list[str]]:
    """The lines of the table of executors, by their ids."""
    lines = [[cell.inner_text() for cell in row.query_selector_all("td")] for row in page.query_selector_all("#executors tbody tr")]
    return {line[0]: line[1:] for line in lines}


def test_homes_are_shown_and_a_loss_and_its_recovery(chromium: Any, program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    assert program.stdin is not None
    url = program.stdout.readline().strip()
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    # Both instances have a home on an executor of their own.
    page.wait_for_selector("#instances td[data-name=home]:has-text('0 on ')")
    page.wait_for_selector("#instances td[data-name=home]:has-text('1 on ')")
    assert "Instances live on executors 0, 1 now." in page.inner_text("#events")
    page.click("nav a[href$='/faults']")
    page.wait_for_selector("#executors tbody tr:nth-child(2)")
    page.wait_for_selector("#checkpoints tbody tr")
    page.wait_for_selector(".tile:has-text('2 of 2'):has-text('copies of state')")
    # Each instance has its copy on the other executor.
    page.wait_for_selector("#copies tbody tr:nth-child(2):has-text('1 of 1')")
    page.wait_for_selector("#copies tbody tr:nth-child(1):has-text('1 of 1')")
    assert "not of every host" in page.inner_text("#copies"), "all executors are on this machine"
    # At the very start copies may have been missing for a moment; nothing was lost.
    assert "Lost executor" not in page.inner_text("#happened")
    before = executors(page)
    assert {line[2] for line in before.values()} == {"1"}, before
    assert {line[3] for line in before.values()} == {"live"}, before
    # One is killed in the middle of a batch: who was lost, how long the recovery took, and where its instance lives now.
    victim = sorted(before)[0]
    program.stdin.write(f"{victim}\n")
    program.stdin.flush()
    page.wait_for_selector("#recoveries tbody tr")
    told = page.inner_text("#recoveries tbody tr")
    assert f"{victim} lost" in told, told
    assert re.search(r"\d+(\.\d+)? (ms|s)", told), told
    page.wait_for_selector(f"#happened td:has-text('Lost executor {victim}')")
    page.wait_for_selector(f"#executors tbody:not(:has(td:first-child div:text-is('{victim}')))")
    # Spark starts another one in its place; copies are made there.
    page.wait_for_selector("#executors tbody tr:nth-child(2)")
    page.wait_for_selector(".tile:has-text('without full redundancy')")
    page.wait_for_selector(".tile:has-text('2 of 2'):has-text('copies of state')")
    # An executor is let go: it hands its state over first, so nothing has to be recovered.
    recoveries = len(page.query_selector_all("#recoveries tbody tr"))
    homes = {each: line for each, line in executors(page).items() if line[2] != "0"}
    leaves = sorted(homes)[0]
    page.click(f"#executors tr:has(td:first-child div:text-is('{leaves}')) button")
    page.wait_for_selector(f"#executors .said:has-text('Handed over: {leaves}.')")
    page.wait_for_selector(f"#executors tbody:not(:has(td:first-child div:text-is('{leaves}')))")
    assert len(page.query_selector_all("#recoveries tbody tr")) == recoveries
    page.click("nav a[href$='/query']")
    page.wait_for_selector("#events td:has-text('executor lost')")
