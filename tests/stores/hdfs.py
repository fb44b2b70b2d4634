"""Hadoop's mini cluster, HDFS alone: one name node and one data node, in a process of their own, on the loopback address."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

SECONDS_MAX = 150
MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


@contextlib.contextmanager
def mini_hdfs(classpath: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run the cluster for as long as the block. Gives its settings, as Hadoop's clients need them."""
    conf, log = folder / "conf.xml", folder / "log"
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={folder / 'data'}", "-cp", classpath]
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*java, MAIN, "-nomr", "-format", "-nnport", "0", "-writeConfig", str(conf)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        began = time.monotonic()
        while not conf.exists() or not conf.read_text().rstrip().endswith("</configuration>"):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() - began < SECONDS_MAX, log.read_text()[-3000:]
            time.sleep(0.2)
        found = {str(each.findtext("name")): str(each.findtext("value")) for each in ElementTree.parse(conf).getroot()}
        yield {name: value for name, value in found.items() if name in ("fs.defaultFS", "dfs.namenode.http-address")}
    finally:
        process.kill()
        process.wait()
