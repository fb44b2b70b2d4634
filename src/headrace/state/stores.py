"""Chooses the durable store for an address: a path, ``file:``, ``s3a:``, ``s3:``, ``gs:``, ``abfss:`` or ``hdfs:``."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

from headrace.errors import CheckpointError
from headrace.state.durable import DurableStore, FolderStore
from headrace.state.objects import SCHEMES, object_store
from headrace.state.requests import Settings

FILE = ("", "file")
HDFS = ("hdfs", "webhdfs")


def is_folder(address: str) -> bool:
    """True if an address is a path, or a ``file:`` URI."""
    return urlparse(address).scheme in FILE


def address_of(location: str, option: str) -> str:
    """A location as an address in one spelling: an absolute path, or a URI without a slash at its end. Refuses what no store has."""
    if not location.strip():
        raise CheckpointError(where=option, wanted="a path or a URI", found="an empty string", hint="name a folder")
    url = urlparse(location)
    if url.scheme in FILE:
        return str(Path(url.path if url.scheme else location).absolute())
    if url.scheme not in SCHEMES and url.scheme not in HDFS:
        raise CheckpointError(
            where=f"{option} {location!r}",
            wanted="a path, or a URI that begins with file:, s3a:, s3:, gs:, abfss: or hdfs:",
            found=f"the scheme {url.scheme!r}",
            hint="mount the storage as a folder, or give headrace.stateLocation a place of another kind",
        )
    return location.rstrip("/")


def open_store(address: str, settings: Settings) -> DurableStore:
    """The store at an address; see `address_of`. Connects when it is first used."""
    scheme = urlparse(address).scheme
    if scheme in SCHEMES:
        return object_store(address, settings)
    if scheme in HDFS:
        from headrace.state.hdfs import hdfs_store

        return hdfs_store(address, settings)
    return FolderStore(Path(address))
