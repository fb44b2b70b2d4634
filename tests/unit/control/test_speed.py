"""A decision over a thousand instances holds no batch back: every policy takes less than 10 ms, in its most expensive case.

`headrace bench control` prints the same cases.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from benchmarks.control.decisions import cases

LIMIT_MS = 10.0
CASES = cases(1000)


def best_ms(call: Callable[[], object], times: int = 15) -> float:
    """CPU time, the best of some: what else the machine does is not the policy's doing."""
    took = []
    for _ in range(times):
        start_s = time.process_time()
        call()
        took.append(time.process_time() - start_s)
    return min(took) * 1000


@pytest.mark.parametrize("name", CASES)
def test_a_decision_takes_less_than_ten_milliseconds(name: str) -> None:
    case = CASES[name]
    assert case.expensive(case.call()), "the case is the expensive one"
    assert best_ms(case.call) < LIMIT_MS


if __name__ == "__main__":
    for name, case in CASES.items():
        print(f"{best_ms(case.call, 40):7.2f} ms  {name}")
