"""The demo's folder. It replaces the files of an earlier demo, and never touches a folder that is not a demo's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from headrace.demo.lane import ELASTIC, STATIC
from headrace.errors import HeadraceError

_MARK = ".headrace-demo"
# The last line is what earlier versions of the demo have written.
_REPLACED = ("calls", "kafka", STATIC, ELASTIC, "bills", "run.json", "report.html", *("heavy", "checkpoint", "spark.log"))


@dataclass(frozen=True)
class DemoFolder:
    """The folder with the input, output, state and report of a demo."""

    path: Path

    @property
    def calls(self) -> Path:
        return self.path / "calls"

    @property
    def kafka(self) -> Path:
        return self.path / "kafka"

    @property
    def bills(self) -> Path:
        """The state of the elastic lane at the end."""
        return self.path / "bills"

    @property
    def recording(self) -> Path:
        """What the report was made from."""
        return self.path / "run.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def lane(self, name: str) -> Path:
        return self.path / name

    def checkpoint(self, lane: str) -> Path:
        return self.lane(lane) / "checkpoint"

    def log(self, lane: str) -> Path:
        return self.lane(lane) / "log.txt"


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
        for name in _REPLACED:
            _remove(path / name)
        folder = DemoFolder(path)
        for made in (folder.calls, folder.lane(STATIC), folder.lane(ELASTIC)):
            made.mkdir()
    except OSError as refused:
        raise HeadraceError(where=str(path), wanted="a folder to write to", found=str(refused), hint="give another --out") from None
    return folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
