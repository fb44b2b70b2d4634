"""Puts the benchmarks into the wheel, below ``headrace/bench/suite``. Everything else is in pyproject.toml.

Modules of theirs import each other as ``benchmarks.NAME.MODULE``, and a wheel must not claim that name in an environment.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SUITE = Path("headrace", "bench", "suite")
NO_CACHES = shutil.ignore_patterns("__pycache__")


class WithBenchmarks(build_py):
    """Copies the benchmarks, and the example that one of them runs."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        suite = Path(self.build_lib) / SUITE
        shutil.copytree(ROOT / "benchmarks", suite / "benchmarks", ignore=NO_CACHES, dirs_exist_ok=True)
        (suite / "examples").mkdir(exist_ok=True)
        shutil.copy2(ROOT / "examples" / "linear_road.py", suite / "examples")


setup(cmdclass={"build_py": WithBenchmarks})
