"""Workers keep their modules out of the collector's sight; what a task leaves behind is still collected."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys, weakref
from headrace.runtime.worker import freeze_modules

freeze_modules()
seen = gc.get_freeze_count()
assert seen > 1_000, seen
assert len(gc.get_objects()) < seen / 10, (len(gc.get_objects()), seen)
freeze_modules()
assert gc.get_freeze_count() == seen, "nothing new was loaded"

class Left: pass
left = Left()
left.itself = left
watched = weakref.ref(left)
del left
gc.collect()
assert watched() is None, "garbage of a task is found"

import colorsys
freeze_modules()
assert gc.get_freeze_count() > seen, "a module that came later stays, too"
"""


def test_modules_are_frozen_once_and_garbage_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
