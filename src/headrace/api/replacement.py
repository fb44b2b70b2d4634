"""What ``query.replace`` did, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.runtime.changes import Changes


@dataclass(frozen=True)
class Replacement:
    """What became of the state of each operator when a query was replaced; ``query.replace`` returns it.

    Operators are named as ``query.explain()`` names them. ``print`` shows all of it in words.
    """

    kept: tuple[str, ...] = ()
    """Operators that go on with their state as it was."""
    evolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Operators that go on with their state in other columns, and what changed: columns added, widened or dropped."""
    backfilled: tuple[str, ...] = ()
    """Operators whose state was computed from all rows that the sources have had."""
    empty: tuple[str, ...] = ()
    """New operators that started with empty state."""
    dropped: tuple[str, ...] = ()
    """Operators that are gone. Their state goes with the last kept version that has it (``headrace.versionsToKeep``)."""
    version: int | None = None
    """The version of the change, from which on the new query runs; None for a dry run, or if the query had no version yet."""
    pause_ms: float | None = None
    """How long no batch could run: from the end of the old query's last batch to the end of the new one's first. None for a dry run."""
    dry_run: bool = False
    """True if nothing was changed."""

    def __str__(self) -> str:
        lines = [f"kept: {', '.join(self.kept)}"] if self.kept else []
        lines += [f"changed: {name}: {'; '.join(texts)}" for name, texts in self.evolved.items()]
        for word, names in (("backfilled", self.backfilled), ("starts empty", self.empty), ("dropped", self.dropped)):
            lines += [f"{word}: {', '.join(names)}"] if names else []
        if self.pause_ms is not None:
            lines.append(f"the pause took {self.pause_ms:,.0f} ms" + ("" if self.version is None else f", until version {self.version}"))
        return "\n".join(lines or ["nothing changes"])

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self) | {"evolved": {name: list(texts) for name, texts in self.evolved.items()}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Replacement:
        """The reverse of ``to_json``: the report with this ``data``."""
        names = {part: tuple(data[part]) for part in ("kept", "backfilled", "empty", "dropped")}
        return cls(**{**data, **names, "evolved": {name: tuple(texts) for name, texts in data["evolved"].items()}})


def replacement(changes: Changes, version: int | None = None, pause_ms: float | None = None) -> Replacement:
    """The report on these changes."""
    return Replacement(
        tuple(map(str, changes.kept)),
        {str(name): texts for name, texts in changes.evolved.items()},
        tuple(map(str, changes.backfilled)),
        tuple(map(str, changes.empty)),
        tuple(map(str, changes.dropped)),
        version,
        pause_ms,
        dry_run=pause_ms is None,
    )
