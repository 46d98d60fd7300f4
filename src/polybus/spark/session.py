"""Opening Spark: everything about the session that is not about our tables.

What is set here are defaults.  They give way to `conf`, to spark-defaults.conf and to what spark-submit was
told; and a session that is there already, as on a notebook server, is used as it is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from polybus.errors import ConfigError, PolybusError
from polybus.spark.java import find_java, java_home, private_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
# A stream's own notes of its last batches; a repeated batch is always the newest one.
BATCHES_KEPT: Final = 20
COMPILED_KEPT: Final = 2000
# A quarter of the memory is Spark's heap; as much again goes to Python's workers and to the page cache.
HEAP_SHARE: Final = 4
LEAST_HEAP_MIB: Final = 1024
MOST_HEAP_MIB: Final = 8192
# A master that listens at all accepts at once, also from far away.
REACH_S: Final = 10.0
# How many shuffle partitions a cluster gets at least: its executors may come after the session.
CLUSTER_PARTITIONS: Final = 8

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Errors only, and none of the lines about which profile of the log is used.
_LOG_SETTINGS: Final = b"""\
# Made by polybus: Spark's errors go to the terminal, the rest is not written.
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
# Spark sets the level of a Python program to that of this one, and says so if it is another than the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} spark %p %c{1}: %m%n%ex
"""
_LOCAL: Final = re.compile(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?")


class SparkMissing(PolybusError):
    """pyspark is not installed."""


class SparkFailed(PolybusError):
    """Spark did not start, or the cluster is not there."""


def open_session(
    master: str = "local[*]", app: str = "polybus", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session to work in: the one that is there, or a new one at `master`.

    Under spark-submit its own `--master` counts.  `conf` takes any setting of Spark's and goes before ours;
    those of a session that is there already are not changed.
    """
    require_spark()
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        return there
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    conf = {} if conf is None else {key: str(value) for key, value in conf.items()}
    # spark-submit has started Java, and has told it its settings.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        # Without this a SparkConf is an empty one of Python's.
        SparkContext._ensure_initialized()
        known = dict(SparkConf().getAll())
        master = known.get("spark.master", master)
    else:
        known = file_defaults(os.environ)
    check_master(master)
    if not submitted:
        check_listens(master)
    settings = {key: value for key, value in defaults(master).items() if key not in known} | conf
    if not submitted:
        settings[JAVA_OPTIONS] = " ".join(
            [*quiet_options(), known.get(JAVA_OPTIONS, ""), conf.get(JAVA_OPTIONS, "")]
        )
    builder = SparkSession.builder.master(master).appName(known.get("spark.app.name", app))
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with environment(variables(master, submitted)):
            session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark did not start at {master}: {_gist(error)}") from error
    if cores(master) is None and "spark.sql.shuffle.partitions" not in {*known, *conf}:
        partitions = max(CLUSTER_PARTITIONS, session.sparkContext.defaultParallelism)
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return session


def require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("the pipeline needs Spark, which is not installed: pip install 'polybus[spark]'")


def check_master(master: str) -> None:
    if master.startswith("sc://"):
        raise ConfigError(
            f"master {master!r} is a Spark Connect server; the pipeline writes its tables in the driver and "
            "needs a master of its own: local[*], spark://HOST:PORT, yarn or k8s://…"
        )
    known = master.startswith(("local", "spark://", "k8s://", "yarn", "mesos://"))
    if not known or (master.startswith("local") and cores(master) is None and "cluster" not in master):
        raise ConfigError(
            f"master {master!r} is none that Spark knows: local[*], local[4], spark://HOST:PORT, yarn, k8s://…"
        )


def check_listens(master: str) -> None:
    """Spark itself would try for a minute or two, and then say little."""
    if not master.startswith("spark://"):
        return
    troubles = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
        except ValueError:
            raise ConfigError(f"master {master!r}: {place!r} is not HOST:PORT") from None
        except OSError as error:
            troubles.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise SparkFailed(
        f"no Spark master answers at {master} ({'; '.join(troubles)}). Start the cluster, correct --master, "
        "or leave it out to work on this machine."
    )


def _gist(error: Exception) -> str:
    """The line that says it, without Java's pages."""
    java = getattr(error, "java_exception", None)
    lines = [line for line in str(error if java is None else java.toString()).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


# -- the settings -----------------------------------------------------------------------------


def defaults(master: str) -> dict[str, str]:
    """What we set unless somebody else does."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{heap_mib(memory_bytes())}m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Readers outside Spark cannot be asked to know its older 96 bit timestamps.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # No database of table names: no metastore_db, no derby.log, no spark-warehouse where people work.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (private_cache() / "warehouse").as_uri(),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        ),
        "spark.sql.streaming.minBatchesToRetain": str(BATCHES_KEPT),
        # A batch of the pipeline has more queries than Spark remembers the compiled code of: each batch would
        # be compiled anew, by Spark and by Java, which costs three times as much as the work itself.
        "spark.sql.codegen.cache.maxEntries": str(COMPILED_KEPT),
    }
    if stays_here(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    count = cores(master)
    if count is not None:
        settings["spark.sql.shuffle.partitions"] = str(count)
    return settings


def variables(master: str, submitted: bool = False) -> dict[str, str]:
    """The environment in which Java and the Python workers are started."""
    found = {}
    if not submitted:
        found["JAVA_HOME"] = str(java_home(find_java()))
    # Spark takes `python3` from PATH otherwise, which has none of our packages. On a cluster the user
    # may know better where Python is.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        found[name] = sys.executable if stays_here(master) else os.environ.get(name) or sys.executable
    if stays_here(master):
        # Otherwise Spark looks for the host's name, which need not lead anywhere.
        found["SPARK_LOCAL_IP"] = LOOPBACK
    return found


def quiet_options() -> list[str]:
    """Options for the driver's Java: what it logs, no time zone but UTC, and room for compiled code."""
    return [
        f"-Dlog4j2.configurationFile={_log_file().as_uri()}",
        "-Duser.timezone=UTC",
        "-XX:ReservedCodeCacheSize=512m",
    ]


def _log_file() -> Path:
    path = private_cache() / "log4j2-v1.properties"
    with contextlib.suppress(OSError):
        if path.read_bytes() == _LOG_SETTINGS:
            return path
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(_LOG_SETTINGS)
    beside.rename(path)
    return path


def file_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings in spark-defaults.conf, which Spark would let ours override."""
    folder = environ.get("SPARK_CONF_DIR")
    if not folder and environ.get("SPARK_HOME"):
        folder = str(Path(environ["SPARK_HOME"]) / "conf")
    found: dict[str, str] = {}
    if folder:
        with contextlib.suppress(OSError):
            text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
            for line in map(str.strip, text.splitlines()):
                match = re.fullmatch(r"(spark\.[^\s=:#]+)\s*[\s=:]\s*(.*)", line)
                if match:
                    found[match[1]] = match[2]
    return found


# -- the machine and the master ---------------------------------------------------------------


def cores(master: str) -> int | None:
    """How many tasks run at once in local mode; None for a cluster."""
    match = _LOCAL.fullmatch(master.strip())
    if match is None:
        return None
    if match[1] is None:
        return 1
    if match[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(match[1]))


def stays_here(master: str) -> bool:
    """Whether driver and executors are all on this machine."""
    if master.strip().startswith("local"):
        return True
    if not master.startswith("spark://"):
        return False
    return all(_is_loopback(f"spark://{place}") for place in master.removeprefix("spark://").split(","))


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def memory_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of this machine, or of the container that we are in."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            most = min(most, int((root / name).read_text()))
    return most


def heap_mib(memory: int) -> int:
    return max(LEAST_HEAP_MIB, min(MOST_HEAP_MIB, memory // HEAP_SHARE // 2**20))


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """The process environment with these variables, and afterwards as it was."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
