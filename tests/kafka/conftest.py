"""A Kafka broker for the tests of this folder. Without Maven's jars they are skipped, which the end of the test run says in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.kafka import Broker, why_not


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests of a process. Each test makes topics with names of its own."""
    made = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may kill."""
    made = Broker(tmp_path / "broker")
    made.start()
    try:
        yield made
    finally:
        made.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = why_not()
    for item in items:
        if why is not None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=why))
