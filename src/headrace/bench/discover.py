"""Finds the benchmarks: folders of ``benchmarks/``, each with a ``bench.py`` that defines ``BENCHMARK``.

They are in the source tree. The wheel has a copy of them below ``suite``.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from headrace.bench.model import Benchmark
from headrace.errors import HeadraceError

FOLDER, SUITE = "benchmarks", "suite"


def source_root() -> Path:
    """The folder that has ``benchmarks/``: the root of the source tree, or the wheel's copy."""
    package = Path(__file__).resolve().parent
    for root in (package.parents[2], package / SUITE):
        if (root / FOLDER / "__init__.py").is_file():
            return root
    raise HeadraceError("the benchmarks are missing", where="bench", found=f"none below {package}", hint="install the wheel again")


def names() -> list[str]:
    return sorted(path.parent.name.replace("_", "-") for path in (source_root() / FOLDER).glob("*/bench.py"))


def load(name: str) -> Benchmark:
    if name not in names():
        raise HeadraceError(where="bench", wanted=f"one of {', '.join(names())}", found=repr(name))
    benchmark = part_module(name, "bench").BENCHMARK
    assert isinstance(benchmark, Benchmark)
    return benchmark


def part_module(name: str, module: str) -> ModuleType:
    """Import a module of a benchmark's folder. Such modules import each other as ``benchmarks.NAME.MODULE``, also in Spark's workers."""
    root = str(source_root())
    if root not in sys.path:
        sys.path.insert(0, root)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return importlib.import_module(f"{FOLDER}.{name.replace('-', '_')}.{module}")
