"""Matching of the program's operators with stored ones: no stored operator is matched twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.runtime.matching import Matching

KIND = "aggregate"


@pytest.mark.parametrize("names", [("a", KIND), (KIND, "a")])
def test_a_new_name_that_reads_like_the_id_of_a_named_operator(names: tuple[str, ...]) -> None:
    # It was called by its kind at first, and got its name later.
    stored = {KIND: {"name": "a", "kind": KIND, "fingerprint": "1", "fingerprint_by_name": "1", "since": 0}}
    flow: Any = SimpleNamespace(ops=[SimpleNamespace(id=n, name=n, plan=SimpleNamespace(kind=KIND), where=n) for n in names])
    known: Any = {"a": SimpleNamespace(fingerprint="1"), KIND: SimpleNamespace(fingerprint="2")}
    assert Matching("here", flow, (known, known), stored, ([], []), {}).ids() == {"a": KIND}
