"""What Spark knows about stores behind a network: Hadoop's settings, and whether Hadoop can reach a place."""

from __future__ import annotations

import shutil
from urllib.parse import urlparse

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.errors import CheckpointError
from headrace.spark.gateway import first_line, java_session, jvm_of

NAMES = (
    "fs.defaultFS",
    "fs.s3a.endpoint",
    "fs.s3a.endpoint.region",
    "fs.s3a.path.style.access",
    "fs.s3a.connection.ssl.enabled",
    "fs.gs.auth.service.account.json.keyfile",
    "google.cloud.auth.service.account.json.keyfile",
    "dfs.http.policy",
)
"""The settings of Hadoop that say how to reach stores, as far as Headrace reads them."""
PREFIXES = ("fs.s3a.bucket.", "fs.azure.account.key", "dfs.ha.namenodes.", "dfs.namenode.http-address", "dfs.namenode.https-address")
"""What settings begin with that have the name of a bucket, a host or a service in their names."""
SECRETS = ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")
"""Settings that may be in one of Hadoop's credential stores."""
PACKAGES = {"s3a": "hadoop-aws", "abfss": "hadoop-azure", "abfs": "hadoop-azure"}
_AS = {"s3": "s3a", "s3n": "s3a", "webhdfs": "hdfs"}
"""Schemes of ours that Hadoop knows by other names."""


def store_settings(session: SparkSession) -> dict[str, str]:
    """Hadoop's settings as this session has them, credentials included."""
    hadoop = java_session(session).sessionState().newHadoopConf()
    found = {name: str(value) for name in NAMES if (value := hadoop.get(name)) is not None}
    for prefix in PREFIXES:
        # A map of Java's, with the rest of each name.
        for rest, value in dict(hadoop.getPropsWithPrefix(prefix)).items():
            found[f"{prefix}{rest}"] = str(value)
    for name in SECRETS:
        if (secret := hadoop.getPassword(name)) is not None:
            found[name] = "".join(secret)
    return found


def for_hadoop(address: str) -> str:
    """An address as Hadoop spells it."""
    scheme, colon, rest = address.partition("://")
    return f"{_AS.get(scheme, scheme)}{colon}{rest}"


def remove_folder(session: SparkSession, address: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    url = urlparse(for_hadoop(address))
    if url.scheme in ("", "file"):
        shutil.rmtree(url.path, ignore_errors=True)
        return
    path = jvm_of(session).org.apache.hadoop.fs.Path(for_hadoop(address))
    path.getFileSystem(java_session(session).sessionState().newHadoopConf()).delete(path, True)


def check_file_system(session: SparkSession, address: str) -> None:
    """Raise an error unless Spark can keep its logs at an address: Hadoop needs a library for most stores."""
    scheme = urlparse(for_hadoop(address)).scheme
    if scheme in ("", "file"):
        return
    jvm = jvm_of(session)
    try:
        jvm.org.apache.hadoop.fs.Path(for_hadoop(address)).getFileSystem(java_session(session).sessionState().newHadoopConf())
    except Py4JJavaError as refused:
        version = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
        library = f"the library of {scheme}: for Hadoop {version}"
        if scheme in PACKAGES:
            library = f"spark.jars.packages=org.apache.hadoop:{PACKAGES[scheme]}:{version}"
        raise CheckpointError(
            where=address,
            wanted="a place where Spark can keep its own logs, by Hadoop's file systems",
            found=first_line(refused),
            hint=f"give Spark {library}; or keep only Headrace's state there: option('headrace.stateLocation', {address!r}) with another"
            " checkpointLocation",
        ) from None
