"""Logging: a logger per module, with fields that say which query, version, operator and instance a message is about.

    _log = logger(__name__)
    with log_fields(query="ckpt", version=7):
        _log.warning("cannot remove %s", path, operator="sum")

Everything is logged below the logger "headrace", which prints nothing by default. The option ``headrace.logLevel`` prints it to stderr, in
the driver and in Spark's Python workers. A program that configures ``logging`` itself gets the messages through its own handlers. Each
record has the attributes ``query``, ``version``, ``operator`` and ``instance``; an attribute that does not apply is None.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any, TextIO

NAME = "headrace"
FIELDS = ("query", "version", "operator", "instance")
"""Attributes of every log record. ``query`` is the checkpoint location, which is unique among running queries."""
LEVELS = ("debug", "info", "warning", "error")

_top = logging.getLogger(NAME)
_top.addHandler(logging.NullHandler())
_bound = threading.local()


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose methods take the fields as keyword arguments, and which adds those of ``log_fields``."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Move the fields to attributes of the record. ``logging`` calls this for each message that is not filtered out."""
        given = {name: kwargs.pop(name) for name in FIELDS if name in kwargs}
        kwargs["extra"] = {**dict.fromkeys(FIELDS), **current_fields(), **given}
        return msg, kwargs


def logger(module: str) -> FieldLogger:
    """The logger of a module, by its ``__name__``."""
    return FieldLogger(logging.getLogger(module), {})


def current_fields() -> dict[str, object]:
    """The fields that ``log_fields`` has set in this thread."""
    return getattr(_bound, "fields", {})


@contextlib.contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add these fields to every message that this thread logs inside the block.

    >>> with log_fields(query="ckpt"), log_fields(version=7):
    ...     current_fields()
    {'query': 'ckpt', 'version': 7}
    """
    before = current_fields()
    _bound.fields = {**before, **fields}
    try:
        yield
    finally:
        _bound.fields = before


@contextlib.contextmanager
def suppressed(log: FieldLogger, what: str, *kinds: type[BaseException], level: int = logging.WARNING, **fields: Any) -> Iterator[None]:
    """Like ``contextlib.suppress``, but logs an exception that ends the block, with ``what`` failed and why."""
    try:
        yield
    except kinds as failure:
        log.log(level, "%s: %s: %s", what, type(failure).__name__, failure, exc_info=level >= logging.WARNING, **fields)


def set_level(level: str) -> None:
    """Print messages of this level and above to stderr, or hand them to the program's own handlers if it has any. "" changes nothing."""
    if not level:
        return
    _top.setLevel(level.upper())
    printing = any(not isinstance(handler, logging.NullHandler) for handler in (*_top.handlers, *logging.getLogger().handlers))
    if not printing:
        handler = _StderrHandler()
        handler.setFormatter(_LineFormatter())
        _top.addHandler(handler)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current ``sys.stderr``, which notebooks and tests replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _LineFormatter(logging.Formatter):
    """``2026-02-03 04:05:06,789 WARNING headrace.runtime.leases [version=7 operator=sum] message``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(fields)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        found = [f"{name}={value}" for name in FIELDS if (value := getattr(record, name, None)) is not None]
        record.fields = f" [{' '.join(found)}]" if found else ""
        return super().format(record)
