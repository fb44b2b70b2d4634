"""The demo's folder. It replaces the files of an earlier demo, and never touches a folder that is not a demo's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError

_MARK = ".headrace-demo"
_FOLDERS, _FILES = ("calls", "heavy", "checkpoint", "kafka"), ("report.html", "spark.log")


@dataclass(frozen=True)
class DemoFolder:
    """The folder with the input, output, state and report of a demo."""

    path: Path

    @property
    def calls(self) -> Path:
        return self.path / "calls"

    @property
    def heavy(self) -> Path:
        return self.path / "heavy"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def kafka(self) -> Path:
        return self.path / "kafka"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def spark_log(self) -> Path:
        return self.path / "spark.log"


def prepare(path: Path) -> DemoFolder:
    """Make an empty demo folder at the path. Files of an earlier demo are removed; others stay."""
    path = path.absolute()
    if path.exists() and not path.is_dir():
        raise HeadraceError(where=str(path), wanted="a folder for the demo", found="a file", hint="give another --out")
    if path.exists() and any(path.iterdir()) and not (path / _MARK).is_file():
        raise HeadraceError(
            where=str(path),
            wanted="an empty folder or one of an earlier demo",
            found="a folder with other things in it",
            hint="give another --out; nothing was changed",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / _MARK).write_text("Written by `headrace demo`, which may replace what it wrote here.\n")
        for name in (*_FOLDERS, *_FILES):
            _remove(path / name)
        folder = DemoFolder(path)
        folder.calls.mkdir()
    except OSError as refused:
        raise HeadraceError(where=str(path), wanted="a folder to write to", found=str(refused), hint="give another --out") from None
    return folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
