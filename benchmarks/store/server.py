"""A local S3 server in a process of its own: moto's, on the loopback address and a port that the kernel picks."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.store.proxy import proxied

KEY, SECRET, REGION = "local", "local-secret", "us-east-1"


def is_there() -> bool:
    """True if moto is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("moto", "flask", "obstore"))


@contextlib.contextmanager
def s3_server(*buckets: str, delay_s: float = 0.0) -> Iterator[int]:
    """Run a server with these buckets for as long as the block. Gives its port. It ends with the process that started it.

    Every request takes ``delay_s`` longer than the server needs.
    """
    command = [sys.executable, "-m", "benchmarks.store.server", str(delay_s)]
    folders = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        for bucket in buckets:
            make_bucket(port, bucket)
        yield port
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def main(delay_s: float) -> None:
    """Serve until standard input ends. Prints the port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    with proxied(port, delay_s=delay_s) if delay_s else contextlib.nullcontext() as proxy:
        print(proxy.port if proxy else port, flush=True)
        sys.stdin.read()


def make_bucket(port: int, bucket: str) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    credential = f"{KEY}/20260101/{REGION}/s3/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0"}
    connection.request("PUT", f"/{bucket}", headers=headers)
    status = connection.getresponse().status
    connection.close()
    if status != 200:
        raise RuntimeError(f"the bucket {bucket} was not made: status {status}")


def hadoop_settings(port: int) -> dict[str, str]:
    """What Hadoop, and Headrace by it, must know about the server, as settings of Spark."""
    known = {
        "endpoint": f"http://127.0.0.1:{port}",
        "endpoint.region": REGION,
        "access.key": KEY,
        "secret.key": SECRET,
        "path.style.access": "true",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in known.items()}


if __name__ == "__main__":
    main(float(sys.argv[1]))
