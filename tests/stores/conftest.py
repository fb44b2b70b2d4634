"""A local S3 server for the tests of this folder, and a proxy before it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from benchmarks.store.proxy import Proxy, proxied
from benchmarks.store.server import hadoop_settings, is_there, s3_server
from headrace.state.requests import Settings

BUCKET = "bucket"
PLAIN = len("spark.hadoop.")


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    if not is_there():
        pytest.skip("needs moto's server and obstore: pip install 'headrace[dev]'")
    with s3_server(BUCKET) as port:
        yield port


@pytest.fixture
def proxy(s3_port: int) -> Iterator[Proxy]:
    with proxied(s3_port) as made:
        yield made


def settings_of(port: int, request_s: float = 5.0) -> Settings:
    return Settings(tuple((name[PLAIN:], value) for name, value in hadoop_settings(port).items()), request_s)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """A place in the bucket that no other test has."""
    return f"s3a://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}-{os.getpid()}"


@pytest.fixture
def s3_spark(spark: SparkSession, proxy: Proxy) -> Iterator[SparkSession]:
    """The session, which knows the server behind the proxy."""
    names = {name[PLAIN:]: value for name, value in hadoop_settings(proxy.port).items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    yield spark
    for name in names:
        spark.conf.unset(name)
