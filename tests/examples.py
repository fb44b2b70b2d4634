"""How many examples a property test tries: all of them in ``make test-all``, a part in ``make test``, which has ten minutes."""

from __future__ import annotations

import os

ALL = "HEADRACE_ALL_EXAMPLES"
PART = 4
AT_LEAST = 5


def examples(number: int, at_least: int = AT_LEAST) -> int:
    return number if os.environ.get(ALL) else min(number, max(at_least, number // PART))
