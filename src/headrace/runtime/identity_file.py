"""The file query.json of a checkpoint: what query it belongs to, with a checksum."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.errors import CheckpointError, CorruptStateError
from headrace.ids import NO_VERSION, Version
from headrace.runtime.noted_routing import body_crc
from headrace.runtime.places import IDENTITY
from headrace.state.durable import DurableStore

IDENTITY_FORMAT = 3
"""The format of query.json. 3: it identifies operators by name and fingerprint, and has a checksum."""
BEFORE, SINCE = "before", "from"
"""Entries after a change of the query: the content before it, and the first version that is made after it."""
_PARTS = {"identities": dict, "sources": list, "retired": list}


def read_identity(store: DurableStore) -> dict[str, Any]:
    """Read query.json. Raises an error if it is damaged or of another format, and FileNotFoundError if there is none."""
    path = store.where(IDENTITY)
    try:
        data: dict[str, Any] = json.loads(store.get(IDENTITY))
        crc, form = data.pop("crc", None), data["format"]
        if not isinstance(data["operators"], dict):
            raise TypeError("operators")
        if form == IDENTITY_FORMAT and not all(isinstance(data[name], kind) for name, kind in _PARTS.items()):
            raise TypeError("identities")
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise _corrupt(path, "text that is none") from broken
    if crc is None and form in range(IDENTITY_FORMAT):
        hint = "start with a new checkpointLocation, or go on with the Headrace that wrote it"
        raise CheckpointError(where=path, wanted=f"format {IDENTITY_FORMAT}", found=f"format {form}", hint=hint)
    if crc != _checksum(data):
        raise _corrupt(path, "another checksum than it carries")
    return data


def write_identity(store: DurableStore, identity: dict[str, Any]) -> None:
    """Write query.json. Values that JSON lacks become text."""
    store.put(IDENTITY, json.dumps({"crc": _checksum(identity), **identity}, indent=2, default=str).encode())


def in_effect(identity: dict[str, Any], newest: Callable[[], Version]) -> tuple[dict[str, Any], bool]:
    """What the file says of the query that wrote the newest version, and True if a change of the query has no version yet."""
    before, since = identity.pop(BEFORE, None), identity.pop(SINCE, NO_VERSION)
    return (identity, False) if before is None or newest() >= since else (before, True)


def of_state(identity: dict[str, Any]) -> Any:
    """What a change of the query changes with its first version. Names that are given to operators are noted at once."""
    names = ("name", "fingerprint_by_name")
    operators = {name: {part: each[part] for part in each if part not in names} for name, each in identity["identities"].items()}
    return operators, identity["operators"]


def _checksum(identity: dict[str, Any]) -> int:
    # It is of the identity as it will be read back.
    return body_crc(json.loads(json.dumps(identity, default=str)))


def _corrupt(path: str, found: str) -> CorruptStateError:
    return CorruptStateError(
        path=path,
        wanted="the description of the query that this checkpoint belongs to",
        found=found,
        hint="restore the file from a backup; nothing was guessed",
    )
