"""Workers hide their modules from the garbage collector. Garbage of a task is still collected."""

from __future__ import annotations

import os
import subprocess
import sys

from headrace.runtime.session import THREADS

PROGRAM = """
import gc, sys, weakref
from headrace.spark.worker import freeze_modules

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


IDLE = """
import os, socket, sys, time
import pyspark.daemon as daemon
import pyspark.worker
from headrace.spark.worker import end_quietly

ours, theirs = socket.socketpair()
pid = os.fork()
if pid == 0:
    ours.close()
    if sys.argv[1] == "quietly":
        end_quietly()
        end_quietly()
    daemon.worker(theirs, True)
    os._exit(0)
theirs.close()
time.sleep(0.5)
ours.close()
os.waitpid(pid, 0)
"""


def test_a_worker_whose_session_is_stopped_ends_without_a_word() -> None:
    said = {how: subprocess.run([sys.executable, "-c", IDLE, how], capture_output=True, text=True).stderr for how in ("loudly", "quietly")}
    assert "BrokenPipeError" in said["loudly"], "PySpark itself has mended it: end_quietly is not needed any more"
    assert said["quietly"] == ""


def test_a_failure_of_a_task_is_told_as_before() -> None:
    program = """
import socket
import pyspark.worker
from headrace.spark.worker import end_quietly
end_quietly()
ours, theirs = socket.socketpair()
out = theirs.makefile("wb")
try:
    raise EOFError("of a user's function")
except EOFError as failure:
    pyspark.worker.handle_worker_exception(failure, out)
out.flush()
assert b"EOFError: of a user's function" in ours.recv(10_000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FORKS = """
import threading
from headrace.spark import worker_daemon

worker_daemon.preload()
assert worker_daemon.may_fork(), "what is imported starts no thread but jemalloc's"
end = threading.Event()
threading.Thread(target=end.wait, daemon=True).start()
assert not worker_daemon.may_fork(), "a thread of Python's would not be copied"
end.set()
"""


def test_a_daemon_with_threads_of_its_own_forks_no_workers() -> None:
    # As `hr.session` sets it: numpy's library starts no threads.
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
