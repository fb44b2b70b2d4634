"""Single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def unbuffered(stream: TextIO) -> Iterator[None]:
    """Inside, keys can be read as they are pressed, and are not shown. Ctrl-C still interrupts."""
    before = termios.tcgetattr(stream)
    try:
        tty.setcbreak(stream)
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def pressed(stream: TextIO, seconds: float) -> str:
    """The next key; "" if none was pressed for so many seconds."""
    ready, _, _ = select.select([stream], [], [], seconds)
    # From the descriptor: Python's own buffer would hide further keys from select.
    return os.read(stream.fileno(), 1).decode(errors="replace") if ready else ""
