"""Removes what executors of local clusters leave behind: their folders are in Spark's own installation, which all tests share."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from headrace.spark.gateway import spark_home

OLD_S = 30
"""A folder that is younger may be that of an executor whose process is just starting."""


def remove_work_folders() -> None:
    """Remove the folders of programs that have ended. Those of other programs, which tests run at the same time, stay."""
    used = {path for process in Path("/proc").glob("[0-9]*") if (path := _folder_of(process)) is not None}
    for folder in (Path(spark_home()) / "work").glob("app-*"):
        young = any(time.time() - each.stat().st_mtime < OLD_S for each in (folder, *folder.glob("*")) if each.exists())
        if not young and not any(each.is_relative_to(folder) for each in used):
            shutil.rmtree(folder, ignore_errors=True)


def _folder_of(process: Path) -> Path | None:
    try:
        return Path(os.readlink(process / "cwd"))
    except OSError:
        return None
