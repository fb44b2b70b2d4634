"""Options of a writer: the same in upper and lower case, as all of Spark's are. Each keeps the spelling it was last given in."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from headrace.config import PREFIX

CHECKPOINT = "checkpointLocation"


class Options(MutableMapping[str, str]):
    """By name, whatever its case.

    >>> options = Options({"CheckpointLocation": "/tmp/c", "header": True})
    >>> options["checkpointLocation"], options["HEADER"], sorted(options)
    ('/tmp/c', 'true', ['CheckpointLocation', 'header'])
    >>> options["checkpointlocation"] = "/tmp/d"
    >>> dict(options)
    {'header': 'true', 'checkpointlocation': '/tmp/d'}
    """

    def __init__(self, given: MutableMapping[str, Any] | None = None) -> None:
        self._values: dict[str, tuple[str, str]] = {}
        for name, value in (given or {}).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        self._values.pop(name.lower(), None)
        self._values[name.lower()] = name, str(value).lower() if isinstance(value, bool) else str(value)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()][1]

    def __delitem__(self, name: str) -> None:
        del self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in self._values.values()])

    def __len__(self) -> int:
        return len(self._values)

    def ours(self) -> dict[str, str]:
        """Those that begin with ``headrace.``."""
        return {name: value for name, value in self.items() if name.lower().startswith(PREFIX)}

    def spark(self) -> dict[str, str]:
        """Those that the sink's format is to get: neither ours, nor the checkpoint's."""
        ours = {name.lower() for name in self.ours()} | {CHECKPOINT.lower()}
        return {name: value for name, value in self.items() if name.lower() not in ours}
