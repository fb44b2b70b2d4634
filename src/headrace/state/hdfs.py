"""HDFS as the durable store, by WebHDFS: the name node's and the data nodes' own HTTP service. Needs no JVM and no library.

    put_if_absent   create a file beside, rename it: the name node refuses to rename to a name that there is
    put             create a file beside, rename it over the old one
    get             a range of bytes, from a data node

A file that is being written is under another name, so readers see all of an object or nothing. Rename is atomic within the name node. An
address is ``hdfs://HOST:PORT/FOLDER`` as Spark has it; where the name nodes' HTTP service is, Hadoop's settings say, or else it is port
9870 of the same host. With several name nodes, the one that is active is found by asking.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlparse

from headrace.errors import QueryError
from headrace.state.durable import Data, kind_of
from headrace.state.requests import PassingError, Settings, refused, tried

HTTP_PORT, HTTPS_PORT = 9870, 9871
LATER = ("StandbyException", "RetriableException", "SafeModeException")
"""What a name node says that cannot answer now."""
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
FAILED = http.client.HTTPException, OSError
Answer = TypeVar("Answer")
_active: dict[tuple[str, ...], str] = {}
"""By name nodes: the one that has answered last in this process."""


@dataclass(frozen=True)
class HdfsStore:
    """The files of a folder in HDFS. Plain data: each process connects for itself."""

    root: str
    """The address of the file system: ``hdfs://host:8020``."""
    prefix: str
    """The path of the folder, with slashes at both ends."""
    name_nodes: tuple[str, ...]
    """The HTTP addresses of the name nodes."""
    user: str
    settings: Settings
    mark: str = ""

    @property
    def local(self) -> Path | None:
        return None

    def below(self, prefix: str) -> HdfsStore:
        return HdfsStore(self.root, f"{self.prefix}{prefix}/", self.name_nodes, self.user, self.settings, self.mark)

    def where(self, key: str) -> str:
        return f"{self.root}{self.prefix}{key}"

    def put_if_absent(self, key: str, data: Data, *, sync: bool = True) -> None:
        beside = self._beside(key)

        def create() -> None:
            self._create(beside, data)
            answer = self._ask("PUT", beside, "RENAME", destination=self._path(key))
            if not answer.get("boolean"):
                # Another writer was first; or an earlier request has renamed it, and its answer was lost.
                there = self.get(key) if self.size(key) is not None else None
                self._ask("DELETE", beside, "DELETE")
                if there is None:
                    raise PassingError("it was not renamed, and no file of that name is there")
                if there != bytes(data):
                    raise FileExistsError(self.where(key))

        self._tried(create, key, "write")

    def put(self, key: str, data: Data, *, sync: bool = True) -> None:
        beside = self._beside(key)

        def replace() -> None:
            self._create(beside, data)
            self._ask("PUT", beside, "RENAME", destination=self._path(key), renameoptions="OVERWRITE")

        self._tried(replace, key, "write")

    def get(self, key: str, begin: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        part: dict[str, Any] = {"offset": begin} | ({} if length is None else {"length": length})

        def read() -> bytes:
            data = self._request("GET", self._path(key), "OPEN", b"", **part)
            if length is not None and len(data) > length:
                raise PassingError(f"{len(data)} bytes for {length}")
            return data

        return self._tried(read, key, "read")

    def size(self, key: str) -> int | None:
        found = self._status(key)
        return None if found is None or found["type"] != "FILE" else int(found["length"])

    def written_s(self, key: str) -> float | None:
        found = self._status(key)
        return None if found is None else int(found["modificationTime"]) / 1000

    def keys(self, prefix: str) -> list[str]:
        return [f"{prefix}{each['pathSuffix']}" for each in self._list(prefix) if each["type"] == "FILE"]

    def folders(self, prefix: str) -> list[str]:
        return [str(each["pathSuffix"]) for each in self._list(prefix) if each["type"] == "DIRECTORY"]

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._tried(lambda key=key: self._ask("DELETE", self._path(key), "DELETE"), key, "remove")  # type: ignore[misc]

    def sync(self, prefix: str) -> None:
        """Does nothing: the name node has what it has confirmed."""

    def clean(self, prefix: str, may_remove: Callable[[str], bool]) -> None:
        for each in self._list(prefix, hidden=True):
            name = str(each["pathSuffix"])
            if name.startswith(".") and name.endswith(".tmp") and may_remove(name.removesuffix(".tmp").rpartition("-")[2]):
                self.delete(f"{prefix}{name}")

    def _beside(self, key: str) -> str:
        folder, _, name = self._path(key).rpartition("/")
        return f"{folder}/.{name}-{self.mark or uuid.uuid4().hex[:8]}.tmp"

    def _path(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def _create(self, path: str, data: Data) -> None:
        self._request("PUT", path, "CREATE", bytes(data), overwrite="true")

    def _status(self, key: str) -> Any:
        try:
            return self._tried(lambda: self._ask("GET", self._path(key), "GETFILESTATUS"), key, "look for")["FileStatus"]
        except FileNotFoundError:
            return None

    def _list(self, prefix: str, *, hidden: bool = False) -> list[Any]:
        try:
            found = self._tried(lambda: self._ask("GET", self._path(prefix).rstrip("/") or "/", "LISTSTATUS"), prefix, "list")
        except FileNotFoundError:
            return []
        return [each for each in found["FileStatuses"]["FileStatus"] if hidden or not each["pathSuffix"].startswith(".")]

    def _tried(self, call: Callable[[], Answer], key: str, doing: str) -> Answer:
        where, wanted = self.where(key), f"to {doing} {kind_of(key)}"
        try:
            return tried(call, where, wanted, self.settings)
        except PermissionError as forbidden:
            hint = f"give the user {self.user!r} the right to read and write there (HADOOP_USER_NAME names the user)"
            raise refused(self.settings.shown(str(forbidden)), where, wanted, hint) from None

    def _ask(self, method: str, path: str, operation: str, **arguments: Any) -> Any:
        """A request to the name node whose answer is JSON."""
        return json.loads(self._request(method, path, operation, b"", **arguments) or b"{}")

    def _request(self, method: str, path: str, operation: str, body: bytes, **arguments: Any) -> bytes:
        """Make a request to the active name node, and to the data node that it names. Its failure becomes one of Python's own errors."""
        failed: Exception = PassingError("no name node")
        known = _active.get(self.name_nodes)
        for node in sorted(self.name_nodes, key=lambda each: each != known):
            query = urlencode({"op": operation, **arguments, **self._identity()})
            address = f"{node}/webhdfs/v1{quote(path)}?{query}"
            try:
                status, data, location = _sent(method, address, b"", self.settings.request_s)
                if location:
                    # The first answer names a data node, which takes or has the bytes.
                    status, data, _ = _sent(method, location, body, self.settings.request_s)
            except FAILED as broken:
                failed = PassingError(f"{urlparse(node).netloc}: {type(broken).__name__}: {broken}")
                continue
            if status < HTTPStatus.BAD_REQUEST:
                _active[self.name_nodes] = node
                return data
            failed = _failure(status, data)
            if not isinstance(failed, PassingError):
                break
        raise failed

    def _identity(self) -> dict[str, str]:
        token = self.settings.get("headrace.hdfs.delegation.token")
        return {"delegation": token} if token else {"user.name": self.user}


def hdfs_store(address: str, settings: Settings) -> HdfsStore:
    """The store at an address such as ``hdfs://host:8020/folder``, or ``hdfs://nameservice/folder``."""
    url = urlparse(address)
    nodes: tuple[str, ...]
    if url.scheme == "webhdfs":
        root, nodes = f"hdfs://{url.netloc}", (f"http://{url.netloc}",)
    else:
        default = urlparse(settings.get("fs.defaultFS") or "")
        host = url.netloc or (default.netloc if default.scheme == "hdfs" else "")
        if not host:
            raise QueryError(where=address, wanted="hdfs://HOST:PORT/FOLDER", found="no host, and no fs.defaultFS")
        root, nodes = f"hdfs://{host}", _name_nodes(host, settings)
    user = os.environ.get("HADOOP_USER_NAME") or _login()
    folder = url.path.strip("/")
    return HdfsStore(root, f"/{folder}/" if folder else "/", nodes, user, settings)


def _name_nodes(host: str, settings: Settings) -> tuple[str, ...]:
    """The HTTP addresses of the name nodes behind an authority: a host with a port, or the name of a service."""
    secure = settings.get("dfs.http.policy") == "HTTPS_ONLY"
    scheme, port = ("https", HTTPS_PORT) if secure else ("http", HTTP_PORT)
    option = f"dfs.namenode.{scheme}-address"
    ids = settings.get(f"dfs.ha.namenodes.{host}")
    if ids is not None:
        found = [settings.get(f"{option}.{host}.{each.strip()}") for each in ids.split(",")]
        return tuple(f"{scheme}://{each}" for each in found if each is not None)
    own = settings.get(option)
    name = host.partition(":")[0]
    if own is None or own.startswith("0.0.0.0"):
        own = f"{name}:{own.partition(':')[2] if own else port}"
    return (f"{scheme}://{own}",)


def _login() -> str:
    import getpass

    return getpass.getuser()


def _sent(method: str, address: str, body: bytes, seconds: float) -> tuple[int, bytes, str]:
    """Make one HTTP request. Returns status, body, and the address that it is redirected to."""
    url = urlparse(address)
    if url.scheme == "https":
        connection = http.client.HTTPSConnection(url.netloc, timeout=seconds, context=ssl.create_default_context())
    else:
        connection = http.client.HTTPConnection(url.netloc, timeout=seconds)  # type: ignore[assignment]
    try:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))} if method == "PUT" else {}
        connection.request(method, f"{url.path}?{url.query}", body or None, headers)
        response = connection.getresponse()
        data = response.read()
        location = response.getheader("Location") if response.status == HTTPStatus.TEMPORARY_REDIRECT else None
        return response.status, data, location or ""
    finally:
        connection.close()


def _failure(status: int, data: bytes) -> Exception:
    """What an answer says went wrong."""
    try:
        told = json.loads(data)["RemoteException"]
        kind, text = str(told["exception"]), str(told["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, text = "", data[:200].decode(errors="replace")
    if status == HTTPStatus.NOT_FOUND or kind == "FileNotFoundException":
        return FileNotFoundError(text)
    if kind in LATER or status in BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return PassingError(f"{kind or status}: {text}")
    return PermissionError(f"{kind or status}: {text}")
