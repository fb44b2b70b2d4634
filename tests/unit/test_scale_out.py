"""SEEP's scale out, which is also recovery, when something is lost meanwhile."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headrace.errors import PlaceLostError
from headrace.state.places import Place
from headrace.state.primitives import (
    replay_buffer_state,
)
from tests.examples import examples
from tests.unit.counting import Cluster, counts, lose, process


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, Random(1))


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_scale_out_and_recovery_are_one_algorithm(cluster: Cluster, parallelism: int) -> None:
    cluster.send(3)
    cluster.backup()
    cluster.send(2)
    lose(cluster.down[0].place)
    cluster.send(2)
    cluster.scale_out(0, parallelism)
    assert len(cluster.down) == parallelism
    assert cluster.counted() == cluster.sent
    cluster.send(2)
    cluster.backup()
    assert cluster.counted() == cluster.sent


def test_the_holder_is_lost_before_the_restores_are_done(cluster: Cluster) -> None:
    """Abort: the old routing stays and the old instance continues. The next attempt, after a new backup, succeeds."""
    cluster.send(2)
    cluster.backup()
    cluster.send(1)
    o, routing = cluster.down[0], cluster.up[0].routing
    assert o.holder is not None
    holder = o.holder
    lose(holder)
    with pytest.raises(PlaceLostError):
        cluster.scale_out(0, 2)
    assert cluster.down == {0: o}
    assert [u.routing for u in cluster.up] == [routing] * 2
    survivor = next(u for u in cluster.up if u.place != holder)
    assert not list(survivor.place.backups.glob("count-0.*")), "what was begun is taken back"
    # The upstream instance recovers at another place; what it has buffered is with its own backup, here still in memory.
    lost = next(u for u in cluster.up if u.place == holder)
    lost.place = cluster.place()
    cluster.send(1)
    assert counts(o) == cluster.sent, "the old instance goes on"
    cluster.backup()
    cluster.scale_out(0, 2)
    assert cluster.counted() == cluster.sent


def test_another_upstream_is_lost_meanwhile(cluster: Cluster) -> None:
    """Go on; it recovers with the new routing and replays by it."""
    cluster.send(2)
    cluster.backup()
    cluster.send(2)
    o = cluster.down[0]
    other = next(u for u in cluster.up if u.place != o.holder)
    lose(other.place)
    cluster.scale_out(0, 2)
    assert cluster.counted() != cluster.sent, "its tuples since the backup are still to come"
    other.place = cluster.place()
    for number, new in cluster.down.items():
        for version, rows in list(replay_buffer_state(other, new, number)):
            process(new, other, version, rows)
    assert cluster.counted() == cluster.sent
    cluster.send(2)
    assert cluster.counted() == cluster.sent


def test_a_new_instance_is_lost_meanwhile_and_later(cluster: Cluster) -> None:
    """It is restored elsewhere, from its own backup."""
    cluster.send(3)
    cluster.backup()
    cluster.send(1)
    given: list[Place] = []

    def fragile() -> Place:
        given.append(cluster.place())
        if len(given) == 2:
            lose(given[-1])
        return given[-1]

    cluster.scale_out(0, 2, fragile)
    assert len(given) == 3
    assert cluster.counted() == cluster.sent
    lose(cluster.down[1].place)
    cluster.scale_out(1, 1)
    assert cluster.counted() == cluster.sent


def test_the_old_instance_is_released_last(cluster: Cluster) -> None:
    cluster.send(2)
    cluster.backup()
    o = cluster.down[0]
    assert o.holder is not None
    holder, seen = o.holder, []

    def watching() -> Place:
        seen.append((holder.backups / "count-0.json").exists())
        return cluster.place()

    cluster.scale_out(0, 3, watching)
    assert seen == [True, True, True]
    assert not (holder.backups / "count-0.json").exists()


def test_random_scale_outs_losses_and_merges_lose_nothing(tmp_path: Path) -> None:
    for seed in range(examples(3, at_least=1)):
        cluster = Cluster(tmp_path / str(seed), Random(seed))
        for _ in range(8):
            cluster.send(cluster.random.randint(1, 2))
            cluster.backup()
            cluster.send(cluster.random.randint(0, 2))
            number = cluster.random.choice(sorted(cluster.down))
            if cluster.random.random() < 0.5:
                lose(cluster.down[number].place)
            cluster.scale_out(number, cluster.random.randint(1, 3))
            assert cluster.counted() == cluster.sent, f"seed {seed}"
