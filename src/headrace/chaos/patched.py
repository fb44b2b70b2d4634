"""Replaces attributes of classes and modules for a while, in a process that loads a user's program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def patched(owner: Any, **attributes: Any) -> Iterator[None]:
    """Inside the block, ``owner`` has these attributes.

    >>> class Box: size = 1
    >>> with patched(Box, size=2, name="box"):
    ...     print(Box.size, Box.name)
    2 box
    >>> Box.size, hasattr(Box, "name")
    (1, False)
    """
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)
