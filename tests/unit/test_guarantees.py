"""Guarantees and approaches: what follows from the settings, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import PREFIX, Config
from headrace.errors import QueryError
from headrace.guarantees import GIVES, Approach, Guarantee, Safety


def safety(**options: Any) -> Safety:
    return Config.read({f"{PREFIX}{name}": value for name, value in options.items()}).safety


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"guarantee": "precise", "recovery": "amnesia"}, "checkpoint or peer or active or upstream: these give the guarantee precise"),
        ({"guarantee": "gap", "recovery": "upstream"}, "checkpoint or peer or amnesia: these give the guarantee gap"),
        ({"recovery": "peer", "replicas": 0}, "1 or more, because the approach peer needs copies"),
        ({"recovery": "checkpoint", "replicas": 1}, "makes no copies"),
        ({"recovery": "upstream", "checkpointSeconds": 3}, "takes no checkpoints"),
        ({"recovery": "active", "acknowledge": "home"}, "peers"),
        ({"guarantee": "exact"}, "precise or rollback or gap"),
        ({"recovery": "peer", "workingDirectory": "none"}, "state is kept on executors"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(QueryError, match=word):
        safety(**options)


def test_without_a_word_everything_is_as_the_single_settings_say() -> None:
    assert safety() == Safety()
    assert safety(checkpointSeconds=5) == Safety(checkpoint_s=5.0)
    assert safety(replicas=2) == Safety(Guarantee.PRECISE, Approach.PEER, 0.0, 2, waits_for_peers=False)
    waiting = safety(replicas=2, checkpointSeconds=5, acknowledge="peers")
    assert waiting == Safety(Guarantee.PRECISE, Approach.PEER, 5.0, 2, waits_for_peers=True)
    assert safety(replicas=2, checkpointSeconds=5) == Safety(Guarantee.PRECISE, Approach.PEER, 5.0, 2)


def test_an_approach_brings_the_settings_that_it_needs() -> None:
    assert safety(recovery="peer") == Safety(Guarantee.PRECISE, Approach.PEER, 30.0, 1)
    assert safety(recovery="peer", guarantee="rollback") == Safety(Guarantee.ROLLBACK, Approach.PEER, 30.0, 1)
    assert safety(guarantee="rollback") == Safety(Guarantee.ROLLBACK, Approach.CHECKPOINT, 10.0)
    assert safety(guarantee="gap", checkpointSeconds=0) == Safety(Guarantee.GAP, Approach.CHECKPOINT, 0.0)
    assert safety(recovery="amnesia").guarantee is Guarantee.GAP
    assert safety(recovery="upstream").at_home
    assert not safety(recovery="upstream").takes_checkpoints


def test_every_pair_that_is_possible_says_what_it_means() -> None:
    said = [safety(guarantee=each, recovery=approach).lines() for approach, possible in GIVES.items() for each in possible]
    assert len({tuple(lines) for lines in said}) == len(said) == 11
    assert all(len(lines) == 3 for lines in said)
