"""The session: what it is set to, that it works with Python and files, and what it leaves behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from polybus.errors import ConfigError
from polybus.spark import session
from support.patience import patient
from support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_python_runs_in_spark_on_columns_of_a_file(spark: SparkSession, tmp_path: Path) -> None:
    when = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    pq.write_table(
        pa.table({"n": pa.array(range(1000)), "at": pa.array([when] * 1000, pa.timestamp("us", "UTC"))}),
        tmp_path / "some.parquet",
    )

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys as there

        for batch in batches:
            twice = [2 * n for n in batch.column("n").to_pylist()]
            who = [there.executable] * len(twice)
            yield pa.RecordBatch.from_arrays([pa.array(twice), pa.array(who)], ["n", "who"])

    read = spark.read.parquet(str(tmp_path))
    result = read.mapInArrow(doubled, "n long, who string").toArrow()
    assert sorted(result.column("n").to_pylist()) == list(range(0, 2000, 2))
    assert set(result.column("who").to_pylist()) == {sys.executable}
    assert read.selectExpr("date_format(max(at), 'HH:mm') AS text").first()["text"] == "01:30"


def test_what_it_writes_others_can_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT timestamp '2026-01-01 00:00:00' AS at").write.parquet(str(tmp_path / "out"))
    assert pq.read_schema(next((tmp_path / "out").glob("*.parquet"))).field("at").type.unit == "us"


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    again = session.open_session("local[7]", conf={"spark.sql.shuffle.partitions": "77"})
    # Streams of other tests may have made another object of it.
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "1"


def test_the_settings_that_are_given_go_first(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.memory") == "1g"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"


SCRIPT = """
from polybus.spark.session import open_session
spark = open_session("local[2]")
spark.range(5).createOrReplaceTempView("t")
assert spark.sql("SELECT sum(id) s FROM t").first().s == 10
assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
print(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
assert "JAVA_HOME" not in __import__("os").environ
"""


@pytest.mark.long
def test_it_is_quiet_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also without a Java on PATH, and without a stop."""
    tools, work = tmp_path / "tools", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    for name in ("sh", "bash", "env", "dirname", "ps"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(work)}
    environ["SPARK_LOCAL_DIRS"] = str(work)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        timeout=patient(270),
    )
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: not Path("/proc", done.stdout.strip()).exists(), "the end of Java")
    assert list(work.iterdir()) == []
    assert len(list((tmp_path / "cache" / "polybus").glob("java-*"))) == 1


SUBMITTED = """
import sys
from polybus.spark.session import open_session
spark = open_session("local[7]", "ours", {"spark.sql.shuffle.partitions": "9"})
conf = spark.sparkContext.getConf()
print(spark.sparkContext.master, conf.get("spark.app.name"), spark.conf.get("spark.sql.shuffle.partitions"),
      spark.conf.get("spark.ui.enabled"), spark.conf.get("spark.sql.session.timeZone"), *sys.argv[1:])
"""


@pytest.mark.long
def test_what_spark_submit_was_told_counts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SUBMITTED)
    environ = {**os.environ, **session.variables("local[3]"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    told = ("--master", "local[3]", "--name", "theirs", "--conf", "spark.log.level=ERROR")
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [program, *told, "--conf", "spark.sql.session.timeZone=Asia/Tokyo", script, "one", "--two"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=patient(270),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["local[3]", "theirs", "9", "false", "Asia/Tokyo", "one", "--two"]


# -- what can be told without Spark -----------------------------------------------------------


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(session.SparkMissing, match=r"pip install 'polybus\[spark\]'"):
        session.open_session()


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    with socket.socket() as master:
        # It keeps its port from others, and listens later.
        master.bind(("127.0.0.1", 0))
        port = master.getsockname()[1]
        with pytest.raises(session.SparkFailed, match=rf"no Spark master answers at .*:{port} \(.*refused"):
            session.check_listens(f"spark://127.0.0.1:{port}")
        master.listen()
        session.check_listens(f"spark://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        session.check_listens("spark://127.0.0.1")
    session.check_listens("local[*]")


@pytest.mark.parametrize("master", ["sc://somewhere:15002", "locally", "local[x]", "7077", "spark:/x"])
def test_masters_that_will_not_do(master: str) -> None:
    with pytest.raises(ConfigError, match="master"):
        session.check_master(master)


@pytest.mark.parametrize(
    ("master", "here", "cores"),
    [
        ("local", True, 1),
        ("local[3]", True, 3),
        ("local[4,2]", True, 4),
        ("local-cluster[2,1,1024]", True, None),
        ("spark://127.0.0.1:7077", True, None),
        ("spark://localhost:7077,127.0.0.2:7078", True, None),
        ("spark://127.0.0.1:7077,example.com:7077", False, None),
        ("spark://example.com:7077", False, None),
        ("yarn", False, None),
        ("k8s://https://127.0.0.1:6443", False, None),
    ],
)
def test_what_a_master_tells(master: str, here: bool, cores: int | None) -> None:
    session.check_master(master)
    assert session.stays_here(master) is here
    assert session.cores(master) == cores
    settings = session.defaults(master)
    assert settings.get("spark.driver.bindAddress") == ("127.0.0.1" if here else None)
    assert settings.get("spark.sql.shuffle.partitions") == (None if cores is None else str(cores))


def test_on_a_cluster_the_users_python_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert session.variables("local[2]")["PYSPARK_PYTHON"] == sys.executable
    found = session.variables("spark://example.com:7077", submitted=True)
    assert found["PYSPARK_PYTHON"] == "/opt/python"
    assert "JAVA_HOME" not in found
    assert "SPARK_LOCAL_IP" not in found


def test_the_heap_fits_the_machine(tmp_path: Path) -> None:
    gib = 2**30
    assert [session.heap_mib(n * gib) for n in (1, 4, 8, 24, 256)] == [1024, 1024, 2048, 6144, 8192]
    (tmp_path / "memory.max").write_text("max\n")
    machine = session.memory_bytes(tmp_path)
    (tmp_path / "memory.max").write_text(f"{gib}\n")
    assert session.memory_bytes(tmp_path) == gib < machine


def test_a_file_of_defaults_is_read(tmp_path: Path) -> None:
    assert session.file_defaults({"SPARK_HOME": str(tmp_path / "none")}) == {}
    text = "# spark.master x\nspark.driver.memory 3g\n  spark.ui.enabled=true\nspark.a: b c\nnonsense\n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    found = session.file_defaults({"SPARK_CONF_DIR": str(tmp_path)})
    assert found == {"spark.driver.memory": "3g", "spark.ui.enabled": "true", "spark.a": "b c"}
