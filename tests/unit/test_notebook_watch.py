"""A query that is watched in a notebook: IPython's own shell gets what a notebook would show."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.api import notebook
from headrace.errors import QueryError

interactive = pytest.importorskip("IPython.core.interactiveshell", reason="no IPython to watch a query in: run make setup")
displays = pytest.importorskip("IPython.core.displaypub")


class Batches:
    """Stands for a query that has so many batches and ends with the last."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.done = wanted, 0

    @property
    def isActive(self) -> bool:
        return self.done < self.wanted

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [{"headrace": {"rows": 100 * at, "batchMs": 1000.0}} for at in range(1, self.done + 1)]

    def _repr_html_(self) -> str:
        self.done += 1
        return f"<p>batch {self.done}</p>"


@pytest.fixture
def shown() -> Iterator[list[dict[str, Any]]]:
    """What is published to a notebook, in order."""
    shell = interactive.InteractiveShell.instance()
    before, shell.display_pub = shell.display_pub, displays.CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    shell.display_pub = before
    interactive.InteractiveShell.clear_instance()


def ended() -> None:
    deadline = time.monotonic() + 60
    for thread in threading.enumerate():
        if thread.name == "headrace-notebook":
            thread.join(deadline - time.monotonic())
            assert not thread.is_alive()


def test_one_output_is_kept_up_to_date_until_the_query_has_ended(shown: list[dict[str, Any]]) -> None:
    notebook.watch(Batches(4), 0.01, "watch")
    ended()
    pages = [each["data"]["text/html"] for each in shown]
    assert len(pages) >= 4
    assert [each["update"] for each in shown] == [False] + [True] * (len(pages) - 1)
    assert len({each["transient"]["display_id"] for each in shown}) == 1
    assert pages[0].startswith("<p>batch 1</p>")
    assert "rows/s while a batch runs: now 300, at most 300 in the last 3 batches" in pages[3]
    assert "batch, ms: now 1,000" in pages[3]


def test_a_page_that_fails_ends_the_watching_with_a_message(
    shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = Batches(10)
    monkeypatch.setattr(notebook, "spark_line", lambda what, values: 1 / (query.done < 2) and "")
    notebook.watch(query, 0.01, "watch")
    ended()
    assert len(shown) == 2
    assert "a notebook does not show the query any more: ZeroDivisionError" in caplog.text


def test_without_ipython_it_says_where_else_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("IPython"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(QueryError, match=r"file\.py:3: wanted a notebook, or IPython; found no package IPython; query\.ui shows"):
        notebook.watch(Batches(1), 1.0, "file.py:3")
