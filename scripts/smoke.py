"""Shows that an installed Headrace works: runs one query and compares its result with Python's own.

python smoke.py VERSION SOURCE_TREE

It fails if Headrace has another version, or comes from the source tree and not from the installed package.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from importlib import metadata, resources
from pathlib import Path

import headrace as hr


def show(checkpoint: str) -> None:
    """The command that shows a query that has ended: it prints an address, answers, and ends cleanly when it is interrupted."""
    command = [str(Path(sys.executable).with_name("headrace")), "dashboard", checkpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        address = shown.stdout.readline().split()[-1]
        place, _, token = address.partition("?token=")
        asked = urllib.request.Request(f"{place}api/queries", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked) as answer:
            (query,) = json.load(answer)["queries"]
        assert (query["state"], query["name"]) == ("ended", "smoke"), query
        shown.send_signal(signal.SIGINT)
        assert shown.wait(30) in (0, 130), f"headrace dashboard ended with {shown.returncode}"


def main(version: str, tree: str) -> None:
    where = Path(hr.__file__).resolve()
    assert not where.is_relative_to(Path(tree) / "src"), f"{where} is not the installed package"
    assert hr.__version__ == metadata.version("headrace") == version, f"wanted {version}; found {hr.__version__}"
    for name in ("py.typed", "spark/log4j2.properties"):
        assert resources.files("headrace").joinpath(name).is_file(), f"{name} is not in the wheel"
    keys = [number % 7 for number in range(100)]
    spark = hr.session("smoke test", master="local[2]", spark__ui__enabled="false")
    with tempfile.TemporaryDirectory() as folder:
        spark.createDataFrame([(key,) for key in keys], "k int").write.parquet(f"{folder}/input")
        stream = hr.stream(spark.readStream.schema("k int").parquet(f"{folder}/input"))
        writer = stream.groupBy("k").count().writeStream.outputMode("update").format("memory").queryName("smoke")
        writer = writer.option("headrace.metricsPort", 0)
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        address = str(query.ui)
        with urllib.request.urlopen(address.partition("#")[0]) as page:
            assert b"static/main.js" in page.read(), "the monitor has no page"
        with urllib.request.urlopen(address.partition("?")[0] + "static/vendor/preact.js") as library:
            assert library.read(), "the monitor's libraries are not in the wheel"
        found = {row["k"]: row["count"] for row in spark.table("smoke").collect()}
        show(f"{folder}/checkpoint")
    assert found == Counter(keys), f"wanted {Counter(keys)}; found {found}"
    print(f"smoke test passed: Headrace {version} on Spark {spark.version}, Python {sys.version.split()[0]}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
