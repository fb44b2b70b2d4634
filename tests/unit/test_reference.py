"""Every public name is on a page of the reference. Its docstring, and those of its members, mention all arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import headrace
import headrace.testing

PAGES = Path(__file__).parents[2] / "docs" / "reference"
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|exception|data):: ([\w.]+)(?:\(\))?\n((?:   :.*\n)*)", re.MULTILINE)
MODULE = re.compile(r"^\.\. currentmodule:: (\S+)", re.MULTILINE)

INTERNAL = {
    "headrace.Elastic": "most, on, chosen, to_json",
    "headrace.GroupedStream": "rows, keys, window, window_at, results_of",
    "headrace.Stream": "rows",
    "headrace.api.measure.Measured": "graph",
    "headrace.control.governor.Entry": "repeats, to_json, from_json",
}
"""Members of public classes that are not for users; the reference leaves them out, and no others."""


@cache
def listed() -> dict[str, dict[str, str]]:
    """The names in the pages of the reference, each with the options of its directive."""
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        module = MODULE.search(text)
        for name, options in DIRECTIVE.findall(text):
            full = name if name.startswith("headrace.") or module is None else f"{module[1]}.{name}"
            found[full] = dict(re.findall(r":([\w-]+): *(.*)", options))
    return found


def value_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def is_member(value: Any) -> bool:
    return isinstance(value, FunctionType | property | cached_property | classmethod | staticmethod)


def our_classes(kind: type) -> list[type]:
    """The class and its base classes that are Headrace's, bases first."""
    return [each for each in reversed(kind.__mro__) if each.__module__.startswith("headrace")]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def text_of(statement: ast.stmt | None) -> str:
    """The text of a statement that is a text, as a docstring is."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def texts_below(statements: list[ast.stmt], owner: str | None) -> dict[str, str]:
    """The text below each assignment: to `owner.name`, or to a plain name if there is no owner. Aliases of other names do not count."""
    found = {}
    for statement, below in zip(statements, [*statements[1:], None], strict=True):
        is_alias = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name) and owner is None
        if isinstance(statement, ast.AnnAssign | ast.Assign) and not is_alias:
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            if isinstance(target, ast.Name) and owner is None:
                found[target.id] = text_of(below)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == owner:
                found[target.attr] = text_of(below)
    return found


def fields_in(node: ast.ClassDef) -> dict[str, str]:
    """The fields of a class with their texts: those of its body, and those that `__init__` sets."""
    makers = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    return texts_below(node.body, None) | {name: text for each in makers for name, text in texts_below(each.body, "self").items()}


def members_of(kind: type) -> dict[str, tuple[str, Any]]:
    """The public members that Headrace defines, each with its text and, for methods, the function."""
    found: dict[str, tuple[str, Any]] = {}
    for each in our_classes(kind):
        node = next(n for n in ast.walk(tree_of(each.__module__)) if isinstance(n, ast.ClassDef) and n.name == each.__name__)
        found |= {name: (text, None) for name, text in fields_in(node).items()}
        found |= {name: (inspect.getdoc(value) or "", value) for name, value in vars(each).items() if is_member(value)}
    return {name: member for name, member in found.items() if not name.startswith("_")}


def shown_members(name: str) -> dict[str, tuple[str, Any]]:
    """The members of a class that its directive shows."""
    options, members = listed()[name], members_of(value_of(name))
    wanted = split(options.get("members", "")) or members
    assert set(wanted) <= set(members), f"{name} has no such members"
    return {each: members[each] for each in members if each in wanted and each not in split(options.get("exclude-members", ""))}


def split(names: str) -> list[str]:
    return [each.strip() for each in names.split(",") if each.strip()]


def text_of_name(name: str) -> str:
    """The docstring of a public class, function or constant."""
    value = value_of(name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__doc__ or ""
    package, _, constant = name.rpartition(".")
    imports = [node for node in ast.walk(tree_of(package)) if isinstance(node, ast.ImportFrom)]
    home = next(node.module for node in imports if constant in [alias.name for alias in node.names])
    return texts_below(tree_of(str(home)).body, None)[constant]


def lacks(text: str, value: Any) -> list[str]:
    """What a docstring lacks: any text at all, or the names of arguments."""
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    arguments = inspect.signature(function).parameters if isinstance(function, FunctionType) else {}
    unnamed = [each for each in arguments if each not in ("self", "cls") and not re.search(rf"``[^`]*\b{each}\b[^`]*``", text)]
    return unnamed if text.strip() else ["a docstring"]


@pytest.mark.parametrize("name", sorted(listed()))
def test_a_name_of_the_reference_says_what_it_is_and_names_its_arguments(name: str) -> None:
    value = value_of(name)
    wanted = {name: lacks(text_of_name(name), value)}
    if inspect.isclass(value):
        wanted |= {f"{name}.{member}": lacks(text, each) for member, (text, each) in shown_members(name).items()}
    assert not {each: missing for each, missing in wanted.items() if missing}


def test_the_check_finds_what_is_missing() -> None:
    def method(self: object, first: int, second: int = 0) -> None: ...

    assert lacks("", method) == ["a docstring"]
    assert lacks("Does something with ``first=2``, but not with the second.", method) == ["second"]
    source = 'class A:\n    bare: int\n    told: int\n    """Text."""\n    def __init__(self):\n        self.more = 1\n'
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert fields_in(node) == {"bare": "", "told": "Text.", "more": ""}


def test_the_reference_lists_every_public_name() -> None:
    public = {f"{module.__name__}.{name}" for module in (headrace, headrace.testing) for name in module.__all__}
    assert public <= set(listed())


def test_the_reference_shows_all_members_of_public_classes() -> None:
    classes = {name: options for name, options in listed().items() if inspect.isclass(value_of(name))}
    assert {name for name, options in classes.items() if "members" not in options} == {"headrace.api.branching.Branches"}
    assert {name: options["exclude-members"] for name, options in classes.items() if "exclude-members" in options} == INTERNAL
    # These have members that only the engine uses.
    chosen = {name for name, options in classes.items() if options.get("members")}
    assert chosen == {"headrace.graph.windows.CountSpec", "headrace.state.routing.Routing", "headrace.testing.Source"}
