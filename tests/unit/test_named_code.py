"""What the documents say about the code exists: each name is in the file beside it, and the list of modules that no query uses is true.

A name and its file stand side by side, in one of two ways. The second one is for a name that the sentence is about:

    `state/run.py` `Run`, `write_run`          `route` (`compile/routing.py`)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_tidy import PACKAGE, ROOT, import_graph, module_name, package_of, sources

DOCS = ROOT / "docs"
ARCHITECTURE = DOCS / "architecture.md"
DOCUMENTS = [ROOT / "CONTRIBUTING.md", ARCHITECTURE, DOCS / "glossary.md", *sorted((DOCS / "decisions").glob("*.md"))]

BLOCK = re.compile(r"^(```+).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
FILE = r"`([\w/]+\.py)`"
NAME = r"`(?:hr\.)?([A-Za-z_]\w*(?:\.(?!py`)\w+)*)`"
FILE_THEN_NAMES = re.compile(rf"{FILE}(\s+{NAME}(?:,\s+{NAME})*)(?!\s+\({FILE})")
NAME_THEN_FILE = re.compile(rf"{NAME}\s+\({FILE}")
OTHER_NOTATION = re.compile(rf"{NAME}\s+(?:in|of)\s+{FILE}")


def text_of(document: Path) -> str:
    return BLOCK.sub("", document.read_text(encoding="utf-8"))


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Each file with each name that stands beside it."""
    for found in FILE_THEN_NAMES.finditer(text):
        yield from ((found[1], name) for name in re.findall(NAME, found[2]))
    for found in NAME_THEN_FILE.finditer(text):
        yield found[2], found[1]


def path_of(file: str) -> Path:
    """A file below the package, or from the root of the repository, as `tests/unit/test_tidy.py` is."""
    inside = PACKAGE / file
    return inside if inside.exists() else ROOT / file


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names that a file defines: `function`, `Class`, `Class.member`, `CONSTANT`."""
    return frozenset(_defined(ast.parse(path.read_text(encoding="utf-8")).body))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            members = {*_defined(node.body), *_set_by_init(node)}
            yield from (f"{node.name}.{member}" for member in members)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def _set_by_init(node: ast.ClassDef) -> Iterator[str]:
    """The fields that `__init__` sets."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            yield from (at.attr for at in ast.walk(each) if isinstance(at, ast.Attribute) and isinstance(at.ctx, ast.Store))


def missing(text: str) -> list[str]:
    """Files that do not exist, and names that are not in the file beside them."""
    files = [file for file in re.findall(FILE, text) if not path_of(file).exists()]
    return files + [f"{file} {name}" for file, name in pairs(text) if path_of(file).exists() and name not in names_in(path_of(file))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_name_is_in_the_file_beside_it(document: Path) -> None:
    text = text_of(document)
    assert not missing(text)
    assert not [found[0] for found in OTHER_NOTATION.finditer(text)], "write `file.py` `name`, or `name` (`file.py`)"


def test_the_documents_have_such_pairs() -> None:
    counts = {document.name: len(list(pairs(text_of(document)))) for document in DOCUMENTS}
    assert counts["glossary.md"] > 60
    assert counts["architecture.md"] > 30


def test_a_wrong_name_or_file_is_found() -> None:
    text = (
        "`state/run.py` `Run`, `nothing` and `hr.stream` (`api/stream.py`), `Runs` (`state/run.py`), `runtime/pools.py`; "
        "`ids.py` `Slot`, `state/routing.py` `Routing.epoch`, `Routing.age`; `hr.Processor` (`operators/processor.py` `hr.Nobody`)"
    )
    names = {"state/run.py nothing", "state/run.py Runs", "state/routing.py Routing.age", "operators/processor.py Nobody"}
    assert set(missing(text)) == {"runtime/pools.py", *names}
    assert OTHER_NOTATION.search("`Run` in\n`state/run.py`")


def test_names_of_a_file_are_functions_classes_members_and_constants(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    methods = "    def e(self): self.g = 1\n    def __init__(self): self.h = 1\n"
    file.write_text(f"A = 1\nB: int = 2\ndef f(): x = 1\nclass C:\n    d: int\n{methods}")
    assert names_in(file) == {"A", "B", "f", "C", "C.d", "C.e", "C.__init__", "C.h"}


SECTION = re.compile(r"^## Built, not yet in running queries\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
ENGINE = ("api", "runtime", "compile", "operators", "graph")
"""The parts of the package that run a query."""


def reached(graph: Mapping[str, set[str]], first: set[str]) -> set[str]:
    """The modules that these import, directly or through others, and these themselves."""
    found, left = set(first), list(first)
    while left:
        more = graph[left.pop()] - found
        found |= more
        left += more
    return found


def unused_by_queries() -> set[str]:
    """The modules of `control` and `state` that the engine never imports, as files below the package."""
    paths = {module_name(path): path for path in sources()}
    graph = import_graph({module: (path.read_text(encoding="utf-8"), package_of(path)) for module, path in paths.items()})
    engine = reached(graph, {module for module, path in paths.items() if path.relative_to(PACKAGE).parts[0] in ENGINE})
    files = {str(path.relative_to(PACKAGE)) for module, path in paths.items() if module not in engine}
    return {file for file in files if file.startswith(("control/", "state/"))}


def listed_as_unused() -> set[str]:
    """The modules in the first column of the section, those of folders included. A module with names beside it is used in part."""
    section = SECTION.search(ARCHITECTURE.read_text(encoding="utf-8"))
    assert section is not None
    firsts = [row.split("|")[1] for row in section[1].splitlines() if row.startswith("| `")]
    whole = {file for cell in firsts for file in re.findall(FILE, FILE_THEN_NAMES.sub("", cell))}
    folders = {folder for cell in firsts for folder in re.findall(r"`([\w/]+/)`", cell)}
    return whole | {str(path.relative_to(PACKAGE)) for folder in folders for path in (PACKAGE / folder).glob("*.py")}


def test_the_architecture_lists_all_policies_and_state_that_queries_do_not_use_yet() -> None:
    assert listed_as_unused() == unused_by_queries()


def test_a_module_is_reached_through_others() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert reached(graph, {"a"}) == {"a", "b", "c"}
