"""Checks what CONTRIBUTING.md says about the source tree: sizes of files, layers of imports, leftovers."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headrace"

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 80

# Lowest first. A module imports from its own layer and from lower ones. "" is the package itself, the public list.
LAYERS = (
    ("ids", "tracebacks", "errors", "logs", "guarantees", "config"),
    ("spark",),
    ("state", "control"),
    ("operators",),
    ("graph",),
    ("compile",),
    ("frontend",),
    ("runtime",),
    ("report",),
    ("sim",),
    ("dashboard",),
    ("api",),
    ("", "testing", "bench", "demo", "chaos"),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}


# What only `headrace.spark` may use: py4j, the private handles of PySpark's objects, JVM classes by their full names, and methods of
# Catalyst and of Java exceptions.
PRIVATE_TO_SPARK = re.compile(
    r"_jvm|_jdf|_jc\b|_jsparkSession|_jsc\b|_jsq|py4j|_gateway\b|_active_spark_context|MODULE\$|PythonUtils|\borg\.apache\.spark\b"
    r"|\.(getClass|getCause|queryExecution|exprId|containsPattern|isStreaming|withNewChildren|semanticEquals|canonicalized)\("
)
PUBLIC_PYSPARK = {
    *("pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types"),
    # Documented names. mypy finds the types of the last two only in these modules.
    *("pyspark.inheritable_thread_target", "pyspark.sql.streaming.query", "pyspark.sql.pandas.functions"),
}
"""Modules of PySpark that other packages import from."""
READ_THE_JVM = {
    "gateway": {"class_name", "full_class_name", "class_named", "items", "iterated", "seq", "seq_maker", "scala_map", "fields", "none"}
    | {"jvm_of", "java_session", "java_context", "java_frame", "java_array", "java_failure_of", "connection", "singleton"},
    "plans": {"analyzed", "optimized", "frame_of", "project", "Binding", "can_be_optimized_early", "with_equal_watermark_ids"},
    "trees": {"walk", "rewrite", "patterns", "contains_any"},
    "streaming": {"reads_stream", "relations", "source_name", "source_options"},
    "expressions": {"column", "expression_maker", "without_alias", "text", "data_type", "numbered_variables"},
    "expression_tree": {"read"},
    "words": {"words", "words_over"},
}
"""By module of `headrace.spark`: names that take or return parts of JVM objects. Other packages get plain values from other functions."""
WITHOUT_SPARK = ("state", "control", "operators", "sim")

# Composed of halves, so that this file does not match.
LEFTOVER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
ABSOLUTE_PATH = re.compile(r"(?<![\w.~})\-/])/(?:" + "|".join(("wor" + "k", "roo" + "t", "hom" + "e", "User" + "s")) + r")(?![\w.\-])")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file that is tracked, or would be by `git add .`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def part_of(module: str) -> str:
    """`headrace.state.run` belongs to the part `state`."""
    return (module.split(".") + [""])[1]


def module_name(path: Path) -> str:
    names = ("headrace", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def package_of(path: Path) -> str:
    """The package that relative imports of a file start from."""
    module = module_name(path)
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


@cache
def parsed(source: str) -> ast.Module:
    """Several tests look at the same files."""
    return ast.parse(source)


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also inside functions and `if TYPE_CHECKING`. `package` resolves relative imports."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def upward_imports(source: str, module: str, package: str) -> list[tuple[str, int, str]]:
    """Imports that go against the layers: importing module, line, imported name.

    A name of the package itself that is no part of it comes from the public list.
    """
    part = part_of(module)
    found = []
    for line, name in imports_of(source, package):
        if name.split(".")[0] != "headrace":
            continue
        wanted = part_of(name) if part_of(name) in LAYER_OF else ""
        if LAYER_OF[wanted] > LAYER_OF[part]:
            found.append((module, line, name))
    return found


def import_graph(sources: Mapping[str, tuple[str, str]]) -> dict[str, set[str]]:
    """Which modules each module imports. `sources` maps a module to its source text and to the package of its relative imports.

    Importing a module also runs the packages around it, so these count as imported, unless they are around the importing module too.
    """
    graph: dict[str, set[str]] = {}
    for module, (source, package) in sources.items():
        graph[module] = set()
        for _, name in imports_of(source, package):
            target = name if name in sources else name.rpartition(".")[0]
            while target in sources and "." in target:
                if not f"{module}.".startswith(f"{target}."):
                    graph[module].add(target)
                target = target.rpartition(".")[0]
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Groups of modules that import each other, directly or through others: the strongly connected components of the graph."""
    names = sorted(graph)
    number = {name: at for at, name in enumerate(names)}
    pairs = [(number[module], number[each]) for module in names for each in graph[module]]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    matrix = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(len(names), len(names)))
    _, group = connected_components(matrix, connection="strong")
    members = [frozenset(name for name, each in zip(names, group, strict=True) if each == one) for one in set(group.tolist())]
    return sorted((each for each in members if len(each) > 1), key=min)


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part_of(module_name(path)) for path in sources()}
    assert parts <= set(LAYER_OF), f"add to LAYERS: {sorted(parts - set(LAYER_OF))}"


def test_imports_go_one_way() -> None:
    found = []
    for path in sources():
        module = module_name(path)
        # The public list re-exports from everywhere.
        if module != "headrace" and part_of(module) in LAYER_OF:
            found += upward_imports(path.read_text(encoding="utf-8"), module, package_of(path))
    wrong = [f"{module}:{line} imports {name}, which is in a higher layer" for module, line, name in found]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    found = cycles(import_graph({module_name(path): (path.read_text(encoding="utf-8"), package_of(path)) for path in sources()}))
    assert not found, "\n".join(f"these modules import each other: {', '.join(sorted(cycle))}" for cycle in found)


@pytest.mark.parametrize(
    ("others", "cycle"),
    [
        ({"headrace.b": "from headrace import a"}, {"a", "b"}),
        ({"headrace.b": "import headrace.c", "headrace.c": "from headrace.a import name"}, {"a", "b", "c"}),
        ({"headrace.b": "if TYPE_CHECKING:\n    from headrace.a import name"}, {"a", "b"}),
        ({"headrace.b": "def late():\n    from . import a"}, {"a", "b"}),
        # Whoever imports headrace.p.q runs headrace.p first.
        ({"headrace.b": "import headrace.p.q", "headrace.p": "import headrace.a", "headrace.p.q": ""}, {"a", "b", "p"}),
    ],
)
def test_a_cycle_of_imports_is_found(others: dict[str, str], cycle: set[str]) -> None:
    graph = import_graph({name: (text, "headrace") for name, text in {"headrace.a": "from headrace import b", **others}.items()})
    assert cycles(graph) == [frozenset(f"headrace.{name}" for name in cycle)]


def test_imports_that_lead_nowhere_back_are_no_cycle() -> None:
    texts = {
        "headrace": "from headrace.a import name",
        "headrace.a": "from headrace.b import name\nimport numpy",
        "headrace.b": "from headrace.p.q import name",
        "headrace.p": "from headrace.p.q import name",
        "headrace.p.q": "import os",
    }
    assert cycles(import_graph({name: (text, "headrace") for name, text in texts.items()})) == []


@pytest.mark.parametrize(
    "source",
    [
        "from headrace.runtime import session",
        "import headrace.cli.version",
        "from headrace import stream",
        "from headrace import runtime",
        "from ..runtime import session",
        "def late():\n    from headrace import runtime",
        "if TYPE_CHECKING:\n    from headrace.runtime import session",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import headrace.graph",
    ],
)
def test_an_import_from_a_higher_layer_is_noticed(source: str) -> None:
    assert upward_imports(source, "headrace.state.run", "headrace.state")


@pytest.mark.parametrize(
    "source",
    [
        "import headrace.errors, numpy",
        "from headrace import ids",
        "from . import merge",
        "from headrace.control import observe",
        "if TYPE_CHECKING:\n    from headrace.control import observe",
    ],
)
def test_an_import_from_its_own_or_a_lower_layer_is_fine(source: str) -> None:
    assert not upward_imports(source, "headrace.state.run", "headrace.state")


def private_names(files: Iterator[tuple[Path, str]]) -> list[str]:
    """Uses of Spark's private names by modules outside of `headrace.spark`."""
    return matches(PRIVATE_TO_SPARK, ((path, text) for path, text in files if part_of(module_name(path)) != "spark"))


def is_public(name: str) -> bool:
    """True if a name is a public module of PySpark, or comes from one. A small letter in `pyspark` and `pyspark.sql` begins a module."""
    module, _, last = name.rpartition(".")
    return name in PUBLIC_PYSPARK or (module in PUBLIC_PYSPARK and (last[0].isupper() or module not in ("pyspark", "pyspark.sql")))


def jvm_readers(source: str, package: str) -> list[str]:
    """Imports and uses of functions that read JVM objects, and imports from private modules of PySpark, by line."""
    found = []
    modules = {f"headrace.spark.{module}": names for module, names in READ_THE_JVM.items()}
    for line, name in imports_of(source, package):
        module, _, last = name.rpartition(".")
        if last in modules.get(module, ()) or (name.split(".")[0] == "pyspark" and not is_public(name)):
            found.append(f"{line} imports {name}")
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in READ_THE_JVM.get(node.value.id, ()):
            found.append(f"{node.lineno} uses {node.value.id}.{node.attr}")
    return found


def test_only_the_spark_package_reads_jvm_objects() -> None:
    others = [path for path in sources() if part_of(module_name(path)) != "spark"]
    found = {path: jvm_readers(path.read_text(encoding="utf-8"), package_of(path)) for path in others}
    wrong = [f"{path.relative_to(PACKAGE)}:{each}" for path, uses in found.items() for each in uses]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "from headrace.spark.gateway import checked, class_name",
        "from headrace.spark.plans import analyzed",
        "from headrace.spark import trees\nfor node in trees.walk(plan): pass",
        "from headrace.spark import gateway\nlist(gateway.items(plan))",
        "def late():\n    from headrace.spark.trees import walk",
        "from pyspark.serializers import CloudPickleSerializer",
        "import pyspark.worker",
        "from pyspark.sql.classic.column import Column",
        "from pyspark.sql.pandas.types import to_arrow_type",
        "from pyspark import cloudpickle, worker\nimport pyspark.util",
    ],
)
def test_reading_jvm_objects_is_noticed(source: str) -> None:
    assert jvm_readers(source, "headrace.compile")


@pytest.mark.parametrize(
    "source",
    [
        "from headrace.spark.gateway import checked, first_line",
        "from headrace.spark import plans\nplans.substituted(frame, pairs)",
        "from pyspark import SparkContext\nfrom pyspark.sql import functions as F\nfrom pyspark.sql import types as T",
        "import pyspark\nfrom pyspark.errors import PySparkException\nfrom pyspark.sql.streaming.query import StreamingQuery",
        "from collections import OrderedDict\ntable.items()",
    ],
)
def test_plain_values_and_public_names_are_fine(source: str) -> None:
    assert not jvm_readers(source, "headrace.compile")


def test_only_the_spark_package_touches_py4j_and_private_names() -> None:
    found = private_names((path, path.read_text(encoding="utf-8")) for path in sources())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "from py4j.protocol import Py4JError",
        "jvm = session._jvm",
        "plan = frame._jdf.queryExecution()",
        "node = column._jc.node()",
        "java = session._jsparkSession",
        "java = context._jsc.sc()",
        "query._jsq.exception()",
        'name = "org.apache.spark.sql.Row"',
        'main = f"org.apache.spark.deploy.{daemon}"',
        "kind = node.getClass().getSimpleName()",
        "cause = java.getCause()",
    ],
)
def test_a_private_name_outside_the_spark_package_is_noticed(source: str) -> None:
    assert private_names(iter([(PACKAGE / "compile" / "plan.py", source)]))
    assert not private_names(iter([(PACKAGE / "spark" / "plans.py", source)]))


def test_state_operators_and_policies_know_nothing_of_spark() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources()
        if part_of(module_name(path)) in WITHOUT_SPARK
        for line, name in imports_of(path.read_text(encoding="utf-8"), module_name(path))
        if name.split(".")[0] == "pyspark" or part_of(name) == "spark"
    ]
    assert not found, "\n".join(found)


def test_no_source_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}


def test_no_function_is_too_long() -> None:
    found = []
    for path in sources():
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {lines} lines")
    assert not found, "\n".join(found)


def matches(pattern: re.Pattern[str], files: Iterator[tuple[Path, str]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in files
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_left_to_do_in_the_source() -> None:
    code = ((path, text) for path, text in text_files() if path.suffix == ".py" or path.parent.name == "scripts")
    found = matches(LEFTOVER, code)
    assert not found, "\n".join(found)


def test_no_file_knows_one_machine() -> None:
    found = matches(ABSOLUTE_PATH, text_files())
    assert not found, "\n".join(found)


def test_state_never_pickles() -> None:
    pickles = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((PACKAGE / "state").rglob("*.py"))
        for line, name in imports_of(path.read_text(encoding="utf-8"), module_name(path))
        if pickles & set(name.split("."))
    ]
    assert not found, "\n".join(found)
