"""Leases: one small object for each version that a reader still needs. What is not a valid lease is ignored."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass

from headrace.errors import StorageError
from headrace.ids import Version
from headrace.logs import logger
from headrace.state.durable import DurableStore

PREFIX = "leases/"
LEASE_SECONDS_MAX = 3600

_log = logger(__name__)


@dataclass(frozen=True)
class Lease:
    """Which process needs which version, and since when."""

    version: Version
    pid: int
    host: str
    since: float

    @classmethod
    def parse(cls, data: bytes) -> Lease:
        body = json.loads(data)
        if int(body["pid"]) <= 0:
            raise ValueError(f"process {body['pid']}")
        return cls(Version(int(body["version"])), int(body["pid"]), str(body["host"]), float(body["since"]))

    @property
    def is_dead(self) -> bool:
        """True if its process has ended, or if it is older than an hour."""
        if not 0 <= time.time() - self.since + LEASE_SECONDS_MAX <= 2 * LEASE_SECONDS_MAX:
            return True
        if self.host != os.uname().nodename:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return False


def take_lease(store: DurableStore, version: Version) -> str:
    """Pin a version: garbage collection leaves it alone until the lease is deleted, its process ends or an hour has passed."""
    key = f"{PREFIX}{uuid.uuid4().hex}.json"
    body = {"version": version, "pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
    store.put(key, json.dumps(body).encode(), sync=False)
    return key


def is_lease(store: DurableStore, key: str) -> bool:
    """False if an object is not a valid lease."""
    try:
        Lease.parse(store.get(key))
    except (OSError, StorageError):
        return True
    except (ValueError, KeyError, TypeError, OverflowError):
        return False
    return True


def lease_keys(store: DurableStore) -> list[str]:
    """The keys of all leases."""
    return [key for key in store.keys(PREFIX) if key.endswith(".json")]


def leased_versions(store: DurableStore) -> set[Version]:
    """The versions that readers need. Removes the leases of readers that have ended."""
    versions = set()
    for key in lease_keys(store):
        try:
            lease = Lease.parse(store.get(key))
        except FileNotFoundError:
            # Its reader has released it since the leases were listed.
            continue
        except (OSError, StorageError) as refused:
            _log.warning("%s: ignored, the lease cannot be read: %s", store.where(key), refused)
            continue
        except (ValueError, KeyError, TypeError, OverflowError) as broken:
            _log.warning("%s: ignored, it is no lease (%s: %s); remove the file", store.where(key), type(broken).__name__, broken)
            continue
        if lease.is_dead:
            store.delete(key)
        else:
            versions.add(lease.version)
    return versions
