"""Finds the benchmarks: folders of ``benchmarks/`` in the source tree, each with a ``bench.py`` that defines ``BENCHMARK``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from headrace.bench.model import Benchmark
from headrace.errors import HeadraceError

FOLDER = "benchmarks"


def source_root() -> Path:
    """The root of the source tree that this package runs from."""
    root = Path(__file__).resolve().parents[3]
    if not (root / FOLDER / "__init__.py").is_file():
        raise HeadraceError(
            "benchmarks come with the source tree",
            where="bench",
            found=f"none beside {Path(__file__).resolve().parents[1]}",
            hint="clone the repository and install it with pip install -e .",
        )
    return root


def names() -> list[str]:
    return sorted(path.parent.name.replace("_", "-") for path in (source_root() / FOLDER).glob("*/bench.py"))


def load(name: str) -> Benchmark:
    if name not in names():
        raise HeadraceError(where="bench", wanted=f"one of {', '.join(names())}", found=repr(name))
    benchmark = part_module(name, "bench").BENCHMARK
    assert isinstance(benchmark, Benchmark)
    return benchmark


def part_module(name: str, module: str) -> ModuleType:
    """Import a module of a benchmark's folder. Such modules import each other as ``benchmarks.NAME.MODULE``."""
    root = str(source_root())
    if root not in sys.path:
        sys.path.insert(0, root)
    return importlib.import_module(f"{FOLDER}.{name.replace('-', '_')}.{module}")
