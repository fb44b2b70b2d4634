"""State that is not in the durable store survives the loss of executors: from copies on others, or computed again from the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

NEVER = "checkpointSeconds=100000"
SPLIT = "parallelRecovery=4"


def run(tmp_path: Path, faults: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.safety", str(tmp_path / "work"), faults, *options]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not seen["failed"]
    if "guarantee=gap" in options:
        lost = sum(gap["rows"] for gap in seen["gaps"])
        assert seen["rows"]["counted"] + lost == seen["rows"]["fed"], "exactly the rows that are reported as missing are missing"
        assert not seen["too many"]
    else:
        assert seen["results"], "the results are those of plain Python"
        assert seen["state"], "the state is that of plain Python"
    return seen


def rebuilt(seen: dict[str, Any]) -> int:
    return sum(batch["rebuilt"] for batch in seen["batches"])


def test_an_executor_is_lost_and_its_instance_goes_on_where_a_copy_is(tmp_path: Path) -> None:
    seen = run(tmp_path, "k", NEVER, "replicas=1", "acknowledge=peers")
    assert rebuilt(seen) == 0, "nothing was computed again"


@pytest.mark.extra
def test_only_versions_without_copies_are_computed_again(tmp_path: Path) -> None:
    seen = run(tmp_path, "sk", NEVER, "replicas=1")
    assert 0 <= rebuilt(seen) <= 2, "versions 0 and 1 had copies when the executor was lost"


@pytest.mark.extra
def test_an_executor_is_lost_and_its_state_is_computed_again_from_the_source(tmp_path: Path) -> None:
    assert rebuilt(run(tmp_path, "k", NEVER)) >= 3


@pytest.mark.extra
@pytest.mark.parametrize("approach", ["checkpoint", "amnesia"])
def test_only_the_slots_of_a_lost_executor_have_a_gap(tmp_path: Path, approach: str) -> None:
    options = (NEVER,) if approach == "checkpoint" else ()
    seen = run(tmp_path, "i", "guarantee=gap", f"recovery={approach}", *options)
    assert rebuilt(seen) == 0, "nothing was computed again"
    (gap,) = seen["gaps"]
    assert 0 < gap["rows"] < 0.5 * seen["rows"]["fed"], "a third of the slots, before the last batches"
    assert sum(hi - lo for lo, hi in gap["slots"]) < 0.5 * 4096


@pytest.mark.extra
@pytest.mark.parametrize(
    ("faults", "options"),
    [
        # Between two batches nothing runs that Spark could run again elsewhere.
        ("i", (NEVER, "replicas=1", "acknowledge=peers")),
        ("i", (NEVER,)),
        # One that hangs is found by the watch, and its state is on a peer.
        ("h", (NEVER, "replicas=1", "acknowledge=peers")),
        # Two of three at once: two copies are enough, one is not, and the rest is computed again.
        ("2", (NEVER, "replicas=2", "acknowledge=peers")),
        ("2", (NEVER, "replicas=1")),
        # Copies are made beside the next batch, checkpoints come in between, slots move.
        ("krk", ("checkpointSeconds=0.5", "replicas=1")),
        ("rkri", (NEVER, "replicas=1")),
        # Every version is durable, and copies only save reading it.
        ("ki", ("replicas=1",)),
        ("rk", ("checkpointSeconds=1",)),
        # Three instances are merged into one, which is lost, and is split again.
        ("mkr", (NEVER, "replicas=1")),
    ],
)
def test_nothing_is_lost_or_doubled(tmp_path: Path, faults: str, options: tuple[str, ...]) -> None:
    run(tmp_path, faults, *options)


@pytest.mark.extra
@pytest.mark.parametrize("fault", ["d", "D"])
def test_an_executor_that_is_decommissioned_hands_its_state_over_first(tmp_path: Path, fault: str) -> None:
    """No other executor has its state, nor has the durable store, and still nothing is computed again."""
    seen = run(tmp_path, fault, NEVER)
    assert rebuilt(seen) == 0
    assert not any(batch["interruptions"] for batch in seen["batches"]), "no batch met the loss of an executor"
    before, after = seen["batches"][2]["homes"], seen["batches"][3]["homes"]
    assert before[0] not in after


@pytest.mark.extra
@pytest.mark.parametrize("options", [(NEVER, "replicas=1", "acknowledge=peers"), ()])
def test_an_executor_that_spark_decommissions_by_itself_costs_nothing_if_others_can_read_its_state(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert rebuilt(run(tmp_path, "P", *options)) == 0


@pytest.mark.extra
@pytest.mark.parametrize("options", [(SPLIT,), (SPLIT, NEVER, "replicas=2", "acknowledge=peers")])
def test_the_slots_of_a_lost_instance_are_split_and_joined_again(tmp_path: Path, options: tuple[str, ...]) -> None:
    seen = run(tmp_path, "kj", *options)
    counts = [batch["instances"] for batch in seen["batches"]]
    assert max(counts) == 4, "one of three instances was split in two"
    assert counts[-1] == 3, "and joined again"
    assert rebuilt(seen) == 0


@pytest.mark.extra
def test_instances_are_not_split_if_nobody_else_can_read_their_state(tmp_path: Path) -> None:
    """With one copy, there is one heir."""
    seen = run(tmp_path, "k", SPLIT, NEVER, "replicas=1")
    assert {batch["instances"] for batch in seen["batches"]} == {3}


@pytest.mark.extra
def test_a_version_that_was_split_is_computed_again_as_its_record_says(tmp_path: Path) -> None:
    """First one executor dies, later all of them: versions with three and with four instances are computed again."""
    seen = run(tmp_path, "k3", SPLIT, NEVER, "replicas=2", "acknowledge=peers")
    assert max(batch["instances"] for batch in seen["batches"]) == 4
    assert rebuilt(seen) >= 5


@pytest.mark.extra
@pytest.mark.parametrize("options", [("recovery=active",), ("recovery=active", NEVER, "replicas=1")])
def test_a_second_attempt_wins_against_one_that_hangs(tmp_path: Path, options: tuple[str, ...]) -> None:
    seen = run(tmp_path, "h", *options)
    assert rebuilt(seen) == 0
    assert [each["hung"] for batch in seen["batches"] for each in batch["interruptions"]] == [True]


@pytest.mark.extra
@pytest.mark.parametrize("options", [(), ("recovery=active",)])
def test_an_executor_that_pauses_is_not_killed(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A garbage collection of 1.5 s is normal. With a second attempt, its instances may move, but it stays."""
    seen = run(tmp_path, "gg", *options)
    assert set(seen["live"]) == {"0", "1", "2"}
    if not options:
        assert not any(batch["interruptions"] for batch in seen["batches"])


@pytest.mark.extra
def test_a_peer_that_hangs_delays_a_batch_by_seconds(tmp_path: Path) -> None:
    """It has no instances, so nothing but the copies for it waits. Spark itself would notice it after two minutes."""
    seen = run(tmp_path, "p", NEVER, "replicas=2", "instances=1", "acknowledge=peers")
    assert max(batch["batchMs"] for batch in seen["batches"]) < 60_000
