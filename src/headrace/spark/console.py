"""What Spark prints to the terminal: its pages about failed tasks and batches go to a log file, all else is printed as before.

Spark reports the failure of a batch up to six times, each time with a page of Java, before the program gets its exception. Headrace says
the same in a few lines. Spark's logging is left alone if the user has configured it.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from pyspark import SparkContext
from pyspark.logger import PySparkLogger

from headrace.spark.gateway import spark_home

CONFIGURATION = Path(__file__).with_name("log4j2.properties")
SUBMIT = "SPARK_SUBMIT_OPTS"
FILE = "headrace.spark.log"
"""A system property of the JVM, which the configuration refers to."""
PYTHON_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark prints each refusal of Spark's with the whole traceback, also if the program catches it."""
_folders: list[Path] = []


def report_folder() -> Path | None:
    """The folder with Spark's reports of failures; None if there are none, or if Spark logs as the user has configured."""
    return _folders[-1] if _folders and _folders[-1].exists() else None


class _PrivateFile(logging.FileHandler):
    """A log file of the user's own. It and its folder are made when there is something to write."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, delay=True)

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(mode=0o700, exist_ok=True)
        return open(self.baseFilename, self.mode, opener=lambda path, flags: os.open(path, flags, 0o600))  # type: ignore[return-value]


@contextmanager
def reports_in_file(settings: Mapping[str, str]) -> Iterator[None]:
    """A JVM that is started inside writes its reports of failures to a file."""
    given = os.environ.get(SUBMIT, "")
    if SparkContext._active_spark_context is not None or SparkContext._gateway is not None or _is_configured(given, settings):
        yield
        return
    # Most sessions have nothing to report, so the folder is made by whoever writes first.
    folder = Path(tempfile.gettempdir()) / f"headrace-log-{secrets.token_hex(8)}"
    _folders.append(folder)
    for name in PYTHON_LOGGERS:
        logger = PySparkLogger.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.addHandler(_PrivateFile(folder / "pyspark.log"))
    os.environ[SUBMIT] = f"{given} -Dlog4j2.configurationFile={CONFIGURATION.as_uri()} -D{FILE}={folder / 'spark.log'}".strip()
    try:
        yield
    finally:
        if given:
            os.environ[SUBMIT] = given
        else:
            del os.environ[SUBMIT]


def _is_configured(options: str, settings: Mapping[str, str]) -> bool:
    """True if the user has configured Spark's logging, in any of the ways that Spark knows."""
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(spark_home()) / "conf")
    texts = (options, os.environ.get("JAVA_TOOL_OPTIONS", ""), *settings.values())
    return any("log4j" in text for text in texts) or any(folder.glob("log4j2.*"))
