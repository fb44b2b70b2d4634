"""What Headrace does for the Python workers that its tasks run in."""

from __future__ import annotations

import gc
import sys

_modules_frozen = 0


def freeze_modules() -> None:
    """Keep what is loaded out of the collector's sight.

    PySpark's daemon collects garbage after every task, and to do so walks through every object of every module: 60 ms, in which the
    worker can take no other task, for some hundred new objects. Modules are there to stay. Called at the beginning of a task, when little
    else is; again only when a task has loaded more.
    """
    global _modules_frozen
    if len(sys.modules) != _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
