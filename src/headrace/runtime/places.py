"""Where a checkpoint is: Spark's logs at ``checkpointLocation``, and Headrace's own files there too, or at ``headrace.stateLocation``.

    checkpointLocation/offsets, commits, sources, metadata     Spark's
    checkpointLocation/headrace/                               ours
    checkpointLocation/headrace/elsewhere.json                 or a note that says where ours are
    stateLocation/headrace/

The note lets a restart find the state although the option is not given again, and refuses one that names another place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError
from headrace.state.durable import DurableStore
from headrace.state.requests import Settings
from headrace.state.stores import address_of, is_folder, open_store

FOLDER = "headrace"
IDENTITY = "query.json"
NOTE = f"{FOLDER}/elsewhere.json"
CHECKPOINT_OPTION = "checkpointLocation"
STATE_OPTION = "headrace.stateLocation"


@dataclass(frozen=True)
class Places:
    """The stores of one checkpoint."""

    location: str
    """The checkpointLocation in one spelling."""
    state: str
    """Where the folder ``headrace`` is: the same, or another place."""
    logs: DurableStore
    """What is at the checkpointLocation."""
    store: DurableStore
    """The durable store: what is in the folder ``headrace``."""

    @classmethod
    def of(cls, location: str, state: str = "", settings: Callable[[], Settings] = Settings) -> Places:
        """The places that the options name. Raises an error if the checkpoint has its state elsewhere.

        ``settings`` is called if a place is behind a network.
        """
        location = address_of(location, CHECKPOINT_OPTION)
        wanted = address_of(state, STATE_OPTION) if state else ""
        logs = _opened(location, settings)
        noted = _noted(logs)
        found = noted or (location if wanted != location and wanted and logs.size(f"{FOLDER}/{IDENTITY}") is not None else wanted)
        if wanted and found != wanted:
            raise CheckpointMismatchError(
                where=location,
                wanted=f"its state at {wanted}, as {STATE_OPTION} says",
                found=f"that it is at {found}",
                hint="leave the option as it was; to move state, stop the query and start with a new checkpointLocation",
            )
        found = found or location
        return cls(location, found, logs, _opened(found, settings).below(FOLDER))

    def note(self) -> None:
        """Note at the checkpointLocation where the state is, if it is elsewhere."""
        if self.state != self.location:
            if self.logs.local is not None:
                (self.logs.local / FOLDER).mkdir(parents=True, exist_ok=True)
            self.logs.put(NOTE, json.dumps({"stateLocation": self.state}).encode())

    def without_state(self) -> CheckpointError:
        """The error for a place that has no checkpoint of ours."""
        there = self.logs.local is None or self.logs.local.exists()
        hint = "give the checkpointLocation of the query, the folder that holds 'headrace'"
        if not there:
            hint = "the folder does not exist; give the checkpointLocation of the query"
        return CheckpointError(where=self.location, wanted="a checkpoint of a Headrace query", found="none", hint=hint)


def _opened(address: str, settings: Callable[[], Settings]) -> DurableStore:
    return open_store(address, Settings() if is_folder(address) else settings())


def _noted(logs: DurableStore) -> str:
    try:
        return str(json.loads(logs.get(NOTE))["stateLocation"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError) as broken:
        path = logs.where(NOTE)
        raise CorruptStateError(path=path, wanted="where the query's state is", found="something else", hint="restore the file") from broken
