"""A real browser, if there is one. `make browser` installs it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="no browser to test the monitor in: run make browser")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no browser to test the monitor in: run make browser")
    with api.sync_playwright() as playwright:
        # Nobody but the test decides what it opens, so it needs no sandbox, which root cannot have.
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        yield running
        running.close()
