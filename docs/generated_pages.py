"""A Sphinx extension with the parts of the reference that are generated from the program, other than docstrings.

    {options}    a table of all `headrace.*` options, from `Config`
    {commands}   every command of the command line with its help

It also turns links to Markdown files outside of docs/ into downloads, as Sphinx does by itself for all other files.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from headrace import config
from headrace.cli import app as command_line

MARKDOWN_LINK = re.compile(r"\]\((?P<path>[^)#:]+\.md)\)")


class Options(SphinxDirective):
    """The table of options."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(option_lines()))


class Commands(SphinxDirective):
    """All commands, each with a heading of its own."""

    def run(self) -> list[nodes.Node]:
        root = typer.main.get_command(command_line)
        lines = [line for each in commands(root, made(root, "headrace")) for line in command_lines(each)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def option_lines() -> Iterator[str]:
    """A Markdown table with one row for each field of `Config`."""
    docs = ModuleAnalyzer.for_module(config.__name__).find_attr_docs()
    yield from ("| option | default | values | meaning |", "| --- | --- | --- | --- |")
    for field in config.option_fields():
        meaning = " ".join(docs["Config", field.name])
        yield row(f"`{config.PREFIX}{field.name}`", shown(field.default), values_of(field), meaning)


def shown(value: Any) -> str:
    """A value as it is written in `option(name, value)`."""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "(empty)"


def values_of(field: dataclasses.Field[Any]) -> str:
    """The values that an option accepts."""
    if field.name in config._CHOICES:
        return ", ".join(shown(value) for value in config._CHOICES[field.name])
    if field.name in config._BOUNDS:
        low, high = config._BOUNDS[field.name]
        return f"{low:,} to {high:,}"
    return "`true`, `false`" if isinstance(field.default, bool) else "text"


def commands(command: Any, context: Any) -> Iterator[Any]:
    """The contexts of all commands that can be called, in the order of `headrace --help`."""
    if not hasattr(command, "commands"):
        yield context
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        yield from commands(child, made(child, name, context))


def made(command: Any, name: str, parent: Any = None) -> Any:
    """The context of a command, as if it had been called without arguments."""
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def command_lines(context: Any) -> Iterator[str]:
    """Heading, help, usage, and a table of arguments and options."""
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    records = [record for each in command.params if (record := each.get_help_record(context)) is not None]
    yield from (f"## {context.command_path}", "", command.help or "", "", "```text", f"{context.command_path} {usage}", "```", "")
    if records:
        yield from ("| argument or option | meaning |", "| --- | --- |")
        yield from (row(f"`{name}`", text) for name, text in records)
    yield ""


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def link_to_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Make links to Markdown files outside of docs/ links to files: Sphinx would take them for pages."""
    folder = Path(app.srcdir, page).parent

    def link(found: re.Match[str]) -> str:
        inside = (folder / found["path"]).resolve().is_relative_to(Path(app.srcdir).resolve())
        return found[0] if inside else f"](path:{found['path']})"

    source[0] = MARKDOWN_LINK.sub(link, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("options", Options)
    app.add_directive("commands", Commands)
    app.connect("source-read", link_to_files)
    return {"parallel_read_safe": True}
