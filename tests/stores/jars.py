"""What Spark needs beside its own jars for S3, and Hadoop's mini cluster: fetched by ``scripts/setup-stores``."""

from __future__ import annotations

from pathlib import Path

import pytest

JARS = Path(__file__).resolve().parents[2] / ".jars"


def classpath(part: str) -> str:
    """The class path of a part: ``s3a`` or ``hdfs``. Skips the test if it was not fetched."""
    if not (JARS / ".stores").exists() or not any((JARS / part).glob("*.jar")):
        pytest.skip("needs jars from Maven: run scripts/setup-stores")
    return f"{JARS / part}/*"
