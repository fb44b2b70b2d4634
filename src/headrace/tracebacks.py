"""Which lines of a traceback are the user's own, and how an error is shown in a few lines."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

SPARK_PATHS = ("pyspark.zip", "/pyspark/", "-src.zip")
"""Parts of the paths of the source files that Spark brings along."""
FRAMES_MAX = 5
_OURS = str(Path(__file__).parent)
_LIBRARIES = ("site-packages", *SPARK_PATHS, sysconfig.get_paths()["stdlib"])


def is_library(file: str) -> bool:
    """True for a source file of Headrace, of Python or of an installed package."""
    return file.startswith((_OURS, "<frozen")) or any(part in file for part in _LIBRARIES)


def own_frames(frames: Iterable[traceback.FrameSummary]) -> tuple[traceback.FrameSummary, ...]:
    """The frames of the user's own code, outermost first. Of many, the innermost."""
    return tuple(each for each in frames if not is_library(each.filename))[-FRAMES_MAX:]


def frames_of(trace: TracebackType | None) -> tuple[traceback.FrameSummary, ...]:
    """The user's own frames of an exception that was raised in this process."""
    return own_frames(traceback.extract_tb(trace))


def printed(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    """Frames as Python prints them, without its marks below the code."""
    lines = []
    for each in frames:
        lines.append(f'  File "{each.filename}", line {each.lineno}, in {each.name}')
        lines += [f"    {each.line}"] if each.line else []
    return lines
