"""A group of commands whose modules are imported when one of them runs, so that `headrace --help` and completion start at once.

The help of the group needs only a line per command, which is given with its module.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Lazy:
    """A command that is not imported yet."""

    about: str
    """Its line in the help of the group."""
    module: str
    """The module below `headrace.cli` with a function of the command's name, or with `app` for a group of commands."""
    settings: str = ""
    """The name in the module of the context settings that the command needs."""

    def loaded(self, name: str) -> Any:
        """The command, imported."""
        module = importlib.import_module(f"headrace.cli.{self.module}")
        found = getattr(module, "app", None)
        if found is None:
            found = made()
            found.command(name, context_settings=getattr(module, self.settings) if self.settings else None)(getattr(module, name))
        command: Any = typer.main.get_command(found)
        command.name = name
        return command


def made(**more: Any) -> typer.Typer:
    """An application of ours. Plain text helps as much as boxes do, and starts three times as fast."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, **more)


def group_of(known: Mapping[str, Lazy]) -> type[TyperGroup]:
    """A class of groups with these commands."""

    class LazyGroup(TyperGroup):
        _listing = False

        def list_commands(self, ctx: Any) -> list[str]:
            return list(known)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in known:
                return None
            return TyperCommand(cmd_name, help=known[cmd_name].about) if self._listing else known[cmd_name].loaded(cmd_name)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            self._listing = True
            super().format_commands(ctx, formatter)
            self._listing = False

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            self._listing = True
            found = super().shell_complete(ctx, incomplete)
            self._listing = False
            return found

    return LazyGroup
