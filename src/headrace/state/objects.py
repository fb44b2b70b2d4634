"""Object stores as the durable store: S3 and what speaks its protocol, Google Cloud Storage, Azure; by the library obstore.

    put_if_absent   one conditional request: If-None-Match (S3, Azure), x-goog-if-generation-match (Google)
    get             a range of bytes is one request
    put             large objects in parts, which appear together when the last one has arrived

Addresses and credentials come from Spark's own settings (``fs.s3a.*``, ``fs.azure.*``, ``fs.gs.*``) where they are given there, and
otherwise from the standard places: environment, profile, the machine's or container's role. See docs/deploy.md.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlparse

from headrace.errors import QueryError
from headrace.state.durable import Data, kind_of
from headrace.state.requests import PassingError, Settings, refused, tried

CONNECT_S_MAX = 5.0
DELETED_AT_ONCE = 1000
"""The most objects that S3 removes in one request."""
SCHEMES = {"s3": "S3", "s3a": "S3", "s3n": "S3", "gs": "Google", "abfss": "Azure", "abfs": "Azure"}
METADATA_HOST = "169.254.169.254"
"""Where a machine in a cloud is asked for its role. The last place, so a failure there says that there are no credentials."""
_MISSING = "install it where driver and executors run: pip install 'headrace[cloud]'"
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ObjectStore:
    """The objects of a bucket whose keys begin with a prefix. Plain data: each process connects for itself."""

    root: str
    """The address of the bucket, and of the container in Azure: ``s3a://bucket``."""
    prefix: str
    """What all keys begin with: empty, or a path with a slash at its end."""
    settings: Settings

    @property
    def local(self) -> Path | None:
        return None

    def below(self, prefix: str) -> ObjectStore:
        return ObjectStore(self.root, f"{self.prefix}{prefix}/", self.settings)

    def where(self, key: str) -> str:
        return f"{self.root}/{self.prefix}{key}"

    def put_if_absent(self, key: str, data: Data, *, sync: bool = True) -> None:
        failed_before = False

        def create() -> None:
            nonlocal failed_before
            try:
                self._call(lambda store, of: of.put(store, self._key(key), bytes(data), mode="create", use_multipart=False))
            except PassingError:
                failed_before = True
                raise
            except FileExistsError:
                # An answer may have been lost on its way. What a writer creates has its id in it, so equal bytes are its own.
                if not failed_before or self.get(key) != bytes(data):
                    raise

        self._tried(create, key, "write")

    def put(self, key: str, data: Data, *, sync: bool = True) -> None:
        self._tried(lambda: self._call(lambda store, of: of.put(store, self._key(key), bytes(data))), key, "write")

    def get(self, key: str, begin: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""

        def read(store: Any, of: Any) -> bytes:
            if length is not None:
                return bytes(of.get_range(store, self._key(key), start=begin, length=length))
            if begin:
                return bytes(of.get(store, self._key(key), options={"range": {"offset": begin}}).bytes())
            return bytes(of.get(store, self._key(key)).bytes())

        return self._tried(lambda: self._call(read), key, "read")

    def size(self, key: str) -> int | None:
        found = self._head(key)
        return None if found is None else int(found["size"])

    def written_s(self, key: str) -> float | None:
        found = self._head(key)
        return None if found is None else float(found["last_modified"].timestamp())

    def keys(self, prefix: str) -> list[str]:
        cut = len(self.prefix)
        return [str(each["path"])[cut:] for each in self._list(prefix)["objects"]]

    def folders(self, prefix: str) -> list[str]:
        return [str(each).rstrip("/").rpartition("/")[2] for each in self._list(prefix)["common_prefixes"]]

    def delete(self, *keys: str) -> None:
        for at in range(0, len(keys), DELETED_AT_ONCE):
            self._delete(keys[at : at + DELETED_AT_ONCE])

    def sync(self, prefix: str) -> None:
        """Does nothing: what was written is durable."""

    def clean(self, prefix: str, may_remove: Callable[[str], bool]) -> None:
        """Does nothing: writes that broke off leave no objects."""

    def _delete(self, keys: Sequence[str]) -> None:
        def remove(store: Any, of: Any) -> None:
            try:
                of.delete(store, [self._key(key) for key in keys])
            except FileNotFoundError:
                # Some stores refuse to remove what is not there.
                if len(keys) > 1:
                    for key in keys:
                        self._delete([key])

        if keys:
            self._tried(lambda: self._call(remove), keys[0], "remove")

    def _head(self, key: str) -> Any:
        try:
            return self._tried(lambda: self._call(lambda store, of: of.head(store, self._key(key))), key, "look for")
        except FileNotFoundError:
            return None

    def _list(self, prefix: str) -> Any:
        return self._tried(lambda: self._call(lambda store, of: of.list_with_delimiter(store, self._key(prefix))), prefix, "list")

    def _key(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def _tried(self, call: Callable[[], Answer], key: str, doing: str) -> Answer:
        where, wanted = self.where(key), f"to {doing} {kind_of(key)}"
        try:
            return tried(call, where, wanted, self.settings)
        except FileNotFoundError as gone:
            if doing == "write":
                hint = f"create it, or give another place than {self.root}"
                raise refused(self.settings.shown(str(gone)), where, "a bucket or container that exists", hint) from None
            raise FileNotFoundError(f"{where}: no such object") from None
        except PermissionError as forbidden:
            hint = "give the credentials of driver and executors the right to read, write, list and remove there; see docs/deploy.md"
            raise refused(self.settings.shown(str(forbidden)), where, wanted, hint) from None

    def _call(self, call: Callable[[Any, Any], Answer]) -> Answer:
        """Make one request. Its failure becomes one of Python's own errors, or a `PassingError`."""
        import obstore
        from obstore import exceptions

        try:
            return call(_client(self.root, self.settings), obstore)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as exists:
            raise FileExistsError(self.settings.shown(str(exists))) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as forbidden:
            raise PermissionError(self.settings.shown(str(forbidden))) from None
        except exceptions.BaseError as failed:
            if METADATA_HOST in str(failed):
                found = "no credentials in Spark's settings, the environment, the profile or the role of the machine"
                raise PermissionError(found) from None
            raise PassingError(self.settings.shown(_said(str(failed)))) from None


def object_store(address: str, settings: Settings) -> ObjectStore:
    """The store at an address such as ``s3a://bucket/folder``."""
    if importlib.util.find_spec("obstore") is None:
        raise QueryError(where=address, wanted="the library obstore, by which object stores are reached", found="none", hint=_MISSING)
    url = urlparse(address)
    if not url.netloc:
        raise QueryError(where=address, wanted=f"{url.scheme}://BUCKET/FOLDER", found="no bucket")
    path = url.path.strip("/")
    return ObjectStore(f"{url.scheme}://{url.netloc}", f"{path}/" if path else "", settings)


@functools.lru_cache(maxsize=16)
def _client(root: str, settings: Settings) -> Any:
    """The connection of this process to a bucket."""
    from obstore.store import AzureStore, GCSStore, S3Store

    url = urlparse(root)
    options: Any = {
        "timeout": timedelta(seconds=settings.request_s),
        "connect_timeout": timedelta(seconds=min(CONNECT_S_MAX, settings.request_s)),
        "allow_http": True,
    }
    plain: Any = {"client_options": options, "retry_config": {"max_retries": 0}}
    kind = SCHEMES[url.scheme]
    if kind == "S3":
        return S3Store(url.netloc, **plain, **_s3(url.netloc, settings))
    if kind == "Google":
        return GCSStore(url.netloc, **plain, **_google(settings))
    return AzureStore(url.username or url.netloc, **plain, **_azure(url.hostname or "", settings))


def _s3(bucket: str, settings: Settings) -> dict[str, Any]:
    def of(*names: str) -> str | None:
        return settings.get(*(f"fs.s3a.{own}{name}" for own in (f"bucket.{bucket}.", "") for name in names))

    endpoint, found = of("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"), dict[str, Any]()
    if endpoint is not None:
        secure = of("connection.ssl.enabled") != "false"
        found["endpoint"] = endpoint if "://" in endpoint else f"http{'s' if secure else ''}://{endpoint}"
    found["region"] = of("endpoint.region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    found["virtual_hosted_style_request"] = endpoint is None and of("path.style.access") != "true"
    key, secret, token = of("access.key"), of("secret.key"), of("session.token")
    if key is not None and secret is not None:
        return found | {"access_key_id": key, "secret_access_key": secret} | ({} if token is None else {"session_token": token})
    named = os.environ.get("AWS_PROFILE") or Path("~/.aws").expanduser().exists()
    if named and "AWS_ACCESS_KEY_ID" not in os.environ and importlib.util.find_spec("boto3") is not None:
        # Profiles, single sign-on and assumed roles are known to Amazon's own library only.
        from obstore.auth.boto3 import Boto3CredentialProvider

        found["credential_provider"] = Boto3CredentialProvider()
    return found


def _google(settings: Settings) -> dict[str, Any]:
    file = settings.get("fs.gs.auth.service.account.json.keyfile", "google.cloud.auth.service.account.json.keyfile")
    return {} if file is None else {"service_account": file}


def _azure(host: str, settings: Settings) -> dict[str, Any]:
    account = host.partition(".")[0]
    key = settings.get(f"fs.azure.account.key.{host}", "fs.azure.account.key")
    return {"account_name": account} | ({} if key is None else {"account_key": key})


def _said(text: str) -> str:
    """What a library's error says, without the trace that follows."""
    return text.partition("\n\nDebug source:")[0]
