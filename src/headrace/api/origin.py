"""The line of the user's code that called Headrace, for error messages."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent)


def user_line(what: str) -> str:
    """``what``, followed by file and line of the nearest caller outside Headrace."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return what
        frame = frame.f_back
    return f"{what} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
