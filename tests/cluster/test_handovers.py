"""The protocols by which state goes to new owners, on executors: only there they differ, because state has a place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster.test_executors import result_of

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.extra, pytest.mark.timeout(400)]


def test_each_protocol_moves_state_at_its_own_time(tmp_path: Path) -> None:
    seen = result_of([sys.executable, "-m", "tests.cluster.handovers", str(tmp_path / "work")])
    assert not seen["failed"]
    assert seen["results"], "each window came once, with the values of plain Python"
    for protocol, found in seen["protocols"].items():
        assert {change["protocol"] for change in found["changes"]} == {protocol}
    brought = {name: [change["bytesFetched"] for change in found["changes"]] for name, found in seen["protocols"].items()}
    assert brought["state recreation"][0] > 0, "the new owner had the state when the routing switched"
    assert brought["buffering"][0] > 0, "no batch ran before it had the state"
    assert brought["merge"][0] == 0, "the routing switched before the state was there"
    assert brought["merge"][1] > 0, "it came later"
    assert set(brought["window recreation"]) == {0}, "no state moves at all"
    began, over = seen["protocols"]["window recreation"]["recreations"]
    assert (began > 0, over) == (True, 0), "the old owner closed the windows that it had begun"


def test_the_old_owner_dies_right_after_the_routing_has_switched(tmp_path: Path) -> None:
    seen = result_of([sys.executable, "-m", "tests.cluster.handovers", str(tmp_path / "work"), "kill"])
    assert not seen["failed"]
    assert seen["results"], "each window came once, with the values of plain Python"
    assert len(seen["protocols"]) == 4
