"""`polybus web` as a process, beside a real broker: every address, what it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polybus.cli.main import run
from polybus.client.admin import AdminClient
from polybus.client.handlers import Request
from polybus.client.worker import Worker
from polybus.web.app import STATIC
from polybus.web.streams import MAX_TAPS
from support.commands import closing
from support.job_broker import JobBroker
from support.live import Peer
from support.patience import patient
from support.waiting import until
from support.web_process import Dashboard

QUICK = {"jobs.backoff_s": 0.05, "broker.drain_s": 0.5}


class Mailer:
    """A worker of the queue `mail` that fails until it is told to work, and waits on demand."""

    def __init__(self) -> None:
        self.works = False
        self.gate = threading.Event()

    def mail(self, request: Request) -> bytes:
        if request.body == b"wait":
            self.gate.wait(patient(20))
        elif not self.works:
            raise RuntimeError("smtp is down")
        return b"sent " + request.body


class Bus:
    """A broker, its worker and its dashboard."""

    def __init__(self, broker: JobBroker, mailer: Mailer, web: Dashboard) -> None:
        self.broker = broker
        self.mailer = mailer
        self.web = web

    def ask(self, do: str, **question: Any) -> Any:
        with AdminClient(self.broker.endpoints["admin.port"]) as admin:
            return admin.ask(do, **question)

    def send(self, body: str) -> str:
        """A guaranteed job; its id."""
        return self.run("send", "mail", body, "--guarantee").strip()

    def run(self, *arguments: str) -> str:
        """What a command prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert run([*arguments, "--data-dir", str(self.broker.folder / "data")]) == 0
        return printed.getvalue()

    def dead_letter(self) -> Any:
        self.mailer.works = False
        job = self.send("hello")
        rows = until(lambda: [row for row in self.ask("dead") if row["job"] == job], "a dead letter")
        return rows[0]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("web")
    mailer = Mailer()
    with JobBroker(folder, QUICK) as broker, contextlib.ExitStack() as stack:
        worker = Worker({"mail": mailer.mail}, broker.endpoints["emqp.workers"], dialect="emqp")
        thread = threading.Thread(target=worker.run)
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(worker.stop)
        stack.callback(mailer.gate.set)
        until(lambda: broker.has_workers("mail"), "the worker")
        web = stack.enter_context(closing(Dashboard(folder, "--data-dir", str(folder / "data"))))
        yield Bus(broker, mailer, web)
        assert not broker.crashes()
        assert web.errors == []


# -- questions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["services", "workers", "nodes", "requests", "bridges", "subscribers", "schedules", "log_nodes"]
)
def test_the_answer_is_the_one_of_the_admin_socket(bus: Bus, name: str) -> None:
    def same() -> bool:
        found = bus.web.get(f"/api/{name}")
        assert found.status == 200
        assert found.headers["content-type"] == "application/json"
        assert found.headers["cache-control"] == "no-store"
        return bool(without_times(found.json) == without_times(bus.ask(name)))

    until(same, "the same answer")


def without_times(value: Any) -> Any:
    """Without what changes while one looks."""
    if isinstance(value, dict):
        moving = {name for name in value if name.endswith(("_s", "_at")) or name in ("at", "load")}
        return {name: without_times(one) for name, one in value.items() if name not in moving}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def test_status_and_monitor_and_queues(bus: Bus) -> None:
    assert bus.web.get("/api/status").json["endpoints"] == bus.ask("status")["endpoints"]
    assert bus.web.get("/api/monitor").json["counts"]["workers"] == 1
    printed = json.loads(bus.run("queues", "--json"))
    assert [row.keys() for row in bus.web.get("/api/queues").json] == [row.keys() for row in printed]


def test_jobs_are_listed_shown_and_cancelled(bus: Bus) -> None:
    bus.mailer.gate.clear()
    job = bus.send("wait")
    row = until(lambda: bus.web.get("/api/jobs?state=running&service=mail&limit=5").json, "a job that runs")[
        0
    ]
    assert row["job"] == job
    assert bus.web.get("/api/jobs?state=waiting").json == []
    shown = bus.web.get(f"/api/jobs/{row['token']}").json
    assert (shown["service"], shown["state"]) == ("mail", "running")
    assert bus.web.post(f"/api/jobs/{row['token']}/cancel", headers={}).status == 401
    assert bus.web.get(f"/api/jobs/{row['token']}").json["state"] == "running"
    assert bus.web.post(f"/api/jobs/{row['token']}/cancel").json == {"cancelled": row["token"]}
    # What was known before the order is not told any more.
    assert bus.web.get("/api/jobs?state=running&service=mail&limit=5").json == []
    assert bus.ask("job", job=row["token"])["state"] == "cancelled"
    bus.mailer.gate.set()


def test_a_dead_letter_is_shown_retried_and_dropped(bus: Bus) -> None:
    first, second = bus.dead_letter(), bus.dead_letter()
    listed = until(lambda: len(found := bus.web.get("/api/dead?service=mail").json) >= 2 and found, "both")
    assert listed == bus.ask("dead")
    assert bus.web.get(f"/api/dead?after={first['token']}").json == [second]
    assert bus.web.get("/api/dead?limit=1").json == [first]
    shown = bus.web.get(f"/api/dead/{first['token']}").json
    assert (shown["dead"], shown["history"][0]["detail"]) == (True, "RuntimeError: smtp is down")
    bus.mailer.works = True
    assert bus.web.post("/api/dead/retry", {"jobs": [first["token"]]}).json == {"retried": 1, "refused": {}}
    until(lambda: bus.ask("job", job=first["token"])["state"] == "done", "its second life")
    refused = bus.web.post("/api/dead/retry", {"jobs": ["nobody"]}).json
    assert refused["refused"] == {"nobody": "no dead letter is called so"}
    assert bus.web.post("/api/dead/drop", {"jobs": [second["token"]]}).json["dropped"] == 1
    assert bus.web.get("/api/dead").json == []
    assert bus.web.post("/api/dead/retry", {"all": "mail"}).json["retried"] == 0


def test_schedules_come_and_go(bus: Bus) -> None:
    wanted = {"queue": "mail", "message": "m", "every_s": 3600, "key": "every/hour"}
    assert bus.web.post("/api/schedules", wanted).json["key"] == "every/hour"
    assert [row["key"] for row in bus.web.get("/api/schedules").json] == ["every/hour"]
    assert bus.web.get("/api/schedules/every/hour/runs?limit=3").json == []
    assert bus.web.ask("DELETE", "/api/schedules/every/hour").status == 401
    assert bus.web.ask("DELETE", "/api/schedules/every%2Fhour", bus.web.authorized).status == 200
    assert bus.ask("schedules") == []
    bad = bus.web.post("/api/schedules", {"queue": "mail"})
    assert bad.status == 400
    assert bad.json["next"]


def test_a_request_is_cancelled(bus: Bus) -> None:
    with Peer(bus.broker.endpoints["majordomo.clients"]) as client:
        client.send(b"", b"MDPC01", b"nobody-serves-this", b"x")
        row = until(lambda: bus.web.get("/api/requests").json, "the request")[0]
        assert row["service"] == "nobody-serves-this"
        assert bus.web.post(f"/api/requests/{row['token']}/cancel").json == {"cancelled": row["token"]}
    assert bus.web.get("/api/requests").json == []


def test_topics_with_their_last_values(bus: Bus) -> None:
    for topic in ("lab/one", "lab/two", "x <b>"):
        bus.run("publish", topic, "hello")
    until(lambda: len(bus.web.get("/api/last?prefix=").json) >= 3, "the topics")
    assert [row["topic"] for row in bus.web.get("/api/last?prefix=lab/").json] == ["lab/one", "lab/two"]
    assert bus.web.get("/api/last?prefix=lab/&limit=1").json[0]["topic"] == "lab/one"
    assert bus.web.get("/api/last/lab/one").json["body_base64"] == ["aGVsbG8="]
    assert bus.web.get("/api/last/x%20%3Cb%3E").json["topic"] == "x <b>"
    assert bus.web.get("/api/last/nothing").status == 404


# -- streams --------------------------------------------------------------------------------------


def test_the_live_state_is_streamed(bus: Bus) -> None:
    with bus.web.stream("/api/stream") as one, bus.web.stream("/api/stream") as other:
        told = one.until("top")
        assert told["health"]["broker"] == "up"
        assert {"totals", "services", "workers", "nodes", "at", "clock"} <= told.keys()
        assert told.keys() - {"health"} == bus.ask("top").keys()
        assert other.until("top")["totals"].keys() == told["totals"].keys()


def test_what_happens_is_tapped(bus: Bus) -> None:
    bus.mailer.works = True
    with (
        bus.web.stream("/api/tap?service=mail") as events,
        bus.web.stream("/api/tap?what=replied") as replies,
    ):
        events.until("open")
        replies.until("open")
        bus.send("tapped")
        assert events.until("tap")["what"] == "accepted"
        assert replies.until("tap")["service"] == "mail"


def test_no_more_than_so_many_taps(bus: Bus) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_TAPS):
            stack.enter_context(bus.web.stream("/api/tap")).until("open")
        refused = bus.web.get("/api/tap")
        assert refused.status == 429
        assert "close" in refused.json["next"]
        # Others are not shut out by it.
        stack.enter_context(bus.web.stream("/api/stream")).until("top")
    # Whoever leaves makes room.
    until(lambda: opened(bus.web, "/api/tap"), "a free place")


def opened(web: Dashboard, path: str) -> bool:
    connection = http.client.HTTPConnection(web.host, web.port, timeout=patient(10))
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    finally:
        connection.close()


def test_logs_are_listed_and_followed(bus: Bus) -> None:
    write_log(bus, "warning", "it is hot")
    found = until(lambda: bus.web.get("/api/logs?level=warning&node=probe*").json["records"], "a record")
    assert found[-1]["message"] == "it is hot"
    assert bus.web.get("/api/logs?level=critical").json["records"] == []
    assert bus.web.get("/api/log_nodes").json == {"probe": {"warning": 1}}
    with bus.web.stream("/api/logs/stream?level=error") as events:
        assert events.until("logs")["records"] == []
        write_log(bus, "error", "it burns")
        assert [row["message"] for row in events.until("logs")["records"]] == ["it burns"]


def write_log(bus: Bus, level: str, message: str) -> None:
    bus.run("publish", f"log/{level}/probe", json.dumps({"message": message}))


# -- history --------------------------------------------------------------------------------------


def test_a_trace_is_what_the_command_prints(bus: Bus) -> None:
    bus.mailer.works = True
    job = bus.send("traced")

    def told() -> Any:
        answer = bus.web.get(f"/api/trace/{job}")
        return answer.status == 200 and answer.json["requests"][0]["outcome"] == "replied" and answer.json

    assert until(told, "the trace") == json.loads(bus.run("trace", job, "--json"))
    missing = bus.web.get("/api/trace/nobody")
    assert missing.status == 404
    assert "--journal" in missing.json["next"]


def test_without_tables_it_says_so(bus: Bus) -> None:
    told = bus.web.get("/api/pipeline").json
    assert (told["tables"], told["next"]) == ([], "polybus pipeline run")
    assert bus.web.get("/api/history/calls").json == []
    assert bus.web.get("/api/history/service?name=mail&minutes=10").json == []
    assert bus.web.get("/api/history/nope").status == 404
    assert bus.web.get("/api/history/service?minutes=-1").status == 400


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/nothing", None, 404),
        ("GET", "/api", None, 404),
        ("GET", "/nothing.html", None, 404),
        ("GET", "/api/jobs/nobody", None, 404),
        ("GET", "/api/jobs?stat=queued", None, 400),
        ("GET", "/api/jobs?state=odd", None, 400),
        ("GET", "/api/jobs?limit=many", None, 400),
        ("GET", "/api/jobs?limit=100000", None, 400),
        ("GET", "/api/logs?level=loud", None, 400),
        ("POST", "/api/jobs/nobody/cancel", None, 404),
        ("POST", "/api/requests/nobody/cancel", None, 404),
        ("POST", "/api/services", None, 405),
        ("PUT", "/api/schedules", None, 405),
        ("POST", "/healthz", None, 405),
        ("POST", "/api/dead/retry", b"[]", 400),
        ("POST", "/api/dead/retry", b"{", 400),
        ("POST", "/api/dead/retry", b"\xff", 400),
        ("POST", "/api/dead/retry", b"{}", 400),
        ("POST", "/api/dead/retry", b'{"job": []}', 400),
        ("POST", "/api/dead/retry", b'{"jobs": "x"}', 400),
        ("POST", "/api/dead/retry", b'{"do": "drain", "all": ""}', 400),
        ("POST", "/api/schedules", b'{"do": "drain"}', 400),
        ("POST", "/api/dead/drop", b'{"jobs": ["' + b"x" * 100_000 + b'"]}', 413),
    ],
)
def test_refusals_are_json_with_a_next_step(
    bus: Bus, method: str, path: str, body: bytes | None, status: int
) -> None:
    answer = bus.web.ask(method, path, bus.web.authorized, body)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert answer.json["error"]
    assert answer.json["next"]
    assert "Traceback" not in answer.body.decode()


def test_nothing_was_drained_by_all_that(bus: Bus) -> None:
    assert bus.ask("status")["state"] == "serving"


@pytest.mark.parametrize(
    "path",
    [
        *("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/js/../../app.py", "/static/../app.py"),
        *("//etc/passwd", "/%2fetc%2fpasswd", "/..\\app.py", "/%00", "/js/%2e%2e/%2e%2e/%2e%2e/errors.py"),
    ],
)
def test_files_outside_are_not_served(bus: Bus, path: str) -> None:
    answer = bus.web.get(path)
    assert answer.status in (400, 404)
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


def test_pages_are_kept_by_browsers_and_checked(bus: Bus) -> None:
    page = bus.web.get("/")
    assert page.status == 200
    assert page.body == (STATIC / "index.html").read_bytes()
    assert page.headers["cache-control"] == "no-cache"
    again = bus.web.get("/", {"If-None-Match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    script = next(iter(STATIC.rglob("*.js"))).relative_to(STATIC)
    assert bus.web.get(f"/{script}").headers["content-type"].startswith("text/javascript")


def test_every_answer_has_the_headers_that_keep_others_out(bus: Bus) -> None:
    for path in ("/", "/api/services", "/api/nothing", "/healthz", "/nothing"):
        headers = bus.web.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
        assert "set-cookie" not in headers


def test_other_names_and_other_sites_are_refused(bus: Bus) -> None:
    assert bus.web.get("/api/services", {"Host": "evil.example"}).status == 403
    assert bus.web.get("/", {"Host": "evil.example"}).status == 403
    evil = {**bus.web.authorized, "Origin": "https://evil.example"}
    assert bus.web.post("/api/dead/retry", {"all": ""}, evil).status == 403
    wrong = bus.web.post("/api/dead/retry", {"all": ""}, {"Authorization": "Bearer wrong"})
    assert wrong.status == 401
    assert wrong.headers["www-authenticate"].startswith("Bearer")
    assert wrong.json["error"] == "the token is wrong"


# -- probes, and a broker that goes away ----------------------------------------------------------


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[tuple[JobBroker, Dashboard]]:
    """A broker that may be killed, and a dashboard that shows it."""
    with (
        JobBroker(folder, QUICK) as broker,
        closing(Dashboard(folder, "--admin", broker.endpoints["admin.port"])) as web,
    ):
        yield broker, web


def test_it_lives_without_its_broker_and_recovers(tmp_path: Path) -> None:
    with beside(tmp_path) as (broker, web):
        assert web.get("/healthz").status == 200
        assert until(lambda: web.get("/readyz").status == 200, "readiness")
        assert web.get("/readyz").json == {"ready": True}
        with web.stream("/api/stream") as events, web.stream("/api/logs/stream") as logs:
            events.until("top")
            logs.until("logs")
            broker.kill()
            gone = events.until("down")["health"]
            assert (gone["broker"], bool(gone["error"]), bool(gone["next"])) == ("down", True, True)
            assert web.get("/healthz").status == 200
            for path in ("/readyz", "/api/services", "/api/jobs/x"):
                answer = web.get(path)
                assert answer.status == 503
                assert "polybus serve" in answer.json["next"]
            # Told to have failed, so it must not be done when the broker is back.
            lost = web.post("/api/schedules", {"queue": "q", "message": "m", "every_s": 60, "key": "late"})
            assert lost.status == 503
            broker.start()
            assert events.until("top")["health"]["broker"] == "up"
            assert until(lambda: web.get("/readyz").status == 200, "readiness")
            logs.until("logs")
        assert web.get("/api/schedules").json == []
        assert web.end(signal.SIGTERM) == 0
        assert web.errors == []


def test_a_broker_that_hangs_is_waited_for_only_so_long(tmp_path: Path) -> None:
    with beside(tmp_path) as (broker, web):
        until(lambda: web.get("/readyz").status == 200, "readiness")
        with broker.frozen():
            begun = time.monotonic()
            until(lambda: web.get("/readyz").status == 503, "the silence to be noticed")
            assert time.monotonic() - begun < patient(15)
        until(lambda: web.get("/readyz").status == 200, "the broker's return")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_and_quietly_with_streams_open(tmp_path: Path, number: signal.Signals) -> None:
    """Without a broker, too."""
    with closing(Dashboard(tmp_path, "--admin", "tcp://127.0.0.1:9")) as web, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(web.stream(path)) for path in ("/api/stream", "/api/logs/stream")]
        streams[0].until("down")
        begun = time.monotonic()
        assert web.end(number) == 0
        assert time.monotonic() - begun < patient(5)
        assert web.errors == []
        assert len(web.output) == 1
        for stream in streams:
            until(lambda stream=stream: stream.next()[0] == "", "the end of the stream")


# -- how it is started ----------------------------------------------------------------------------


def test_a_token_of_ones_own(tmp_path: Path) -> None:
    with closing(Dashboard(tmp_path, "--admin", "tcp://127.0.0.1:9", "--token", "my-own-token")) as web:
        assert web.token == "my-own-token"
    file = tmp_path / "token"
    with closing(Dashboard(tmp_path, "--admin", "tcp://127.0.0.1:9", "--token-file", str(file))) as web:
        # What is kept in a file is not printed.
        assert web.token == ""
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        right = {"Authorization": f"Bearer {token}"}
        assert web.post("/api/dead/retry", {"all": ""}, right).status == 503
        assert web.post("/api/dead/retry", {"all": ""}, {}).status == 401


def test_beyond_loopback_reading_needs_the_token_too(tmp_path: Path) -> None:
    with closing(Dashboard(tmp_path, "--admin", "tcp://127.0.0.1:9", "--host", "0.0.0.0")) as web:
        assert "no TLS" in web.wait_for(web.errors, "reading needs the token")
        assert web.get("/api/nothing").status == 401
        assert web.get("/metrics").status == 401
        assert web.get(f"/api/nothing?token={web.token}").status == 404
        assert web.get("/api/nothing", web.authorized).status == 404
        assert web.get("/healthz").status == 200
        assert web.get("/").status == 200
        with web.stream(f"/api/stream?token={web.token}") as events:
            events.until("down")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--token", "short"], "at least 8"),
        (["--token", "long-enough", "--token-file", "f"], "give one of them"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--token-file", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["web", "--port", "0", *arguments]) in (1, 2)
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["web", "--port", port]) == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said
    assert "--port 0" in said


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from polybus.cli.web import require_web
    from polybus.errors import ConfigError

    real: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    with pytest.raises(ConfigError, match=r"uvicorn.*pip install 'polybus\[web\]'"):
        require_web()
