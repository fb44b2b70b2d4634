"""Options of a writer. Upper and lower case are equal, as in all of Spark's options. The last spelling of a name is kept."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from headrace.config import PREFIX

CHECKPOINT = "checkpointLocation"


class Options(MutableMapping[str, str]):
    """Options by name, without regard to case.

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
        """The options that begin with ``headrace.``."""
        return {name: value for name, value in self.items() if name.lower().startswith(PREFIX)}

    def spark(self) -> dict[str, str]:
        """The options for the sink's format: all but Headrace's own and the checkpoint's."""
        ours = {name.lower() for name in self.ours()} | {CHECKPOINT.lower()}
        return {name: value for name, value in self.items() if name.lower() not in ours}
