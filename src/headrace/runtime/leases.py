"""Leases: one small file for each version that a reader still needs. A file that is not a valid lease is ignored."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from headrace.ids import Version
from headrace.logs import logger
from headrace.state.disk import disk_errors

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
    def read(cls, path: Path) -> Lease:
        body = json.loads(path.read_bytes())
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


def take_lease(folder: Path, version: Version) -> Path:
    """Pin a version: garbage collection leaves it alone until the lease is released, its process ends or an hour has passed."""
    path = folder / f"{uuid.uuid4().hex}.json"
    body = {"version": version, "pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
    with disk_errors(path, "to note that a version is being read"):
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(body))
        temporary.replace(path)
    return path


def is_lease(path: Path) -> bool:
    """False if the file is not a valid lease."""
    try:
        Lease.read(path)
    except OSError:
        return True
    except (ValueError, KeyError, TypeError, OverflowError):
        return False
    return True


def leased_versions(folder: Path) -> set[Version]:
    """The versions that readers need. Removes the leases of readers that have ended."""
    versions = set()
    for path in folder.glob("*.json"):
        try:
            lease = Lease.read(path)
        except FileNotFoundError:
            # Its reader has released it since the folder was listed.
            continue
        except OSError as refused:
            _log.warning("%s: ignored, the lease cannot be read: %s", path, refused)
            continue
        except (ValueError, KeyError, TypeError, OverflowError) as broken:
            _log.warning("%s: ignored, it is no lease (%s: %s); remove the file", path, type(broken).__name__, broken)
            continue
        if lease.is_dead:
            path.unlink(missing_ok=True)
        else:
            versions.add(lease.version)
    return versions
