"""Listening in: who may, what is heard, and that listeners cost nothing when they are gone."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

import polybus
from polybus.cli.tap import STYLES
from polybus.core import events, schedules
from polybus.core.actions import Observed
from polybus.core.lifecycle import TERMINAL
from polybus.core.model import JobOptions
from polybus.server.taps import KINDS, MAX_TAPS, POLL_LEASE_S, POLL_RECORDS, observation_view
from support.lookout import CLIENT, VOICE, Lookout


def opened(lookout: Lookout, **wants: Any) -> str:
    lookout.call("tap", {"wait_s": 0, **wants})
    (answer,) = lookout.answers()
    assert answer["records"] == []
    name: str = answer["tap"]
    return name


def records(lookout: Lookout, tap: str, **more: Any) -> list[dict[str, Any]]:
    lookout.call("tap", {"tap": tap, "wait_s": 0, **more})
    (answer,) = lookout.answers()
    found: list[dict[str, Any]] = answer["records"]
    return found


def test_a_client_of_any_dialect_hears_what_passes() -> None:
    lookout = Lookout()
    lookout.worker()
    tap = opened(lookout, service="echo")
    lookout.submit(b"1")
    lookout.submit(b"2", b"other")
    found = records(lookout, tap)
    assert [(one["what"], one["request_id"]) for one in found] == [("accepted", "1"), ("dispatched", "1")]
    assert all("body_base64" not in one for one in found)
    assert records(lookout, tap) == []
    # Its own calls are not requests.
    everything = opened(lookout)
    assert records(lookout, everything) == []


def test_a_reply_has_a_size_of_its_own() -> None:
    request = Observed(1.0, "dispatched", size=5)
    reply = Observed(1.0, "replied", size=5, body=[b"hello ", b"again"])
    assert [observation_view(one, 0.0, False)["bytes"] for one in (request, reply)] == [5, 11]


def test_several_kinds_are_combined() -> None:
    lookout = Lookout()
    tap = opened(lookout, what="worker_up, dispatched")
    lookout.submit(b"1")
    lookout.worker()
    assert [one["what"] for one in records(lookout, tap)] == ["worker_up", "dispatched"]


def test_a_kind_that_does_not_exist_is_refused() -> None:
    lookout = Lookout()
    lookout.call("tap", {"what": "accepted,repleid"})
    (answer,) = lookout.answers()
    assert "nothing that happens is called 'repleid'; did you mean 'replied'? There are accepted, " in answer
    (told,) = lookout.ask("tap", what="xyzzy")
    assert "nothing that happens is called 'xyzzy'. There are accepted, " in told["error"]
    assert not lookout.bus.watched
    assert len(lookout.admin.taps) == 0


def test_every_kind_that_the_broker_tells_of_can_be_asked_for() -> None:
    source = Path(polybus.__file__).parent
    texts = "".join(path.read_text() for part in ("core", "server") for path in (source / part).glob("*.py"))
    told = set(re.findall(r'\.observe(?:_request)?\(\s*"(\w+)"', texts))
    # These are made of other words, or chosen between two.
    told |= {"unsubscribed", "store_well", "published", "log"}
    told |= {
        f"schedule_{word}" for word in (schedules.RAN, schedules.LATE, schedules.SKIPPED, schedules.MOVED)
    }
    told |= {state.name.lower() for state in TERMINAL}
    assert told == set(KINDS)
    assert set(STYLES) <= set(KINDS)


def test_an_answer_waits_for_something_to_tell() -> None:
    lookout = Lookout()
    lookout.call("tap", {"service": "echo", "wait_s": 10})
    assert lookout.answers() == []
    lookout.submit(b"1")
    (answer,) = lookout.answers()
    assert [one["what"] for one in answer["records"]] == ["accepted"]
    lookout.call("tap", {"tap": answer["tap"], "wait_s": 3})
    lookout.tick(2.0)
    assert lookout.answers() == []
    lookout.tick(2.0)
    assert lookout.answers() == [{"tap": answer["tap"], "records": [], "missed": 0}]


def test_whoever_asks_again_no_longer_waits() -> None:
    lookout = Lookout()
    tap = opened(lookout)
    lookout.call("tap", {"tap": tap, "wait_s": 20})
    lookout.call("tap", {"tap": tap, "wait_s": 20})
    assert lookout.answers() == [{"tap": tap, "records": [], "missed": 0}]
    lookout.submit(b"1")
    assert len(lookout.answers()) == 1


def test_permission() -> None:
    lookout = Lookout("off")
    lookout.call("tap", {"service": "echo"})
    assert "monitor.tap is 'off'" in lookout.answers()[0]
    assert "monitor.tap is 'off'" in lookout.ask("tap")[0]["error"]
    assert not lookout.bus.watched
    lookout.admin.taps.allow("meta")
    lookout.call("tap", {"bodies": True})
    assert "monitor.tap is 'meta'" in lookout.answers()[0]
    assert "monitor.tap is 'meta'" in lookout.ask("tap", bodies=True)[0]["error"]
    assert not lookout.bus.watched
    lookout.admin.taps.allow("bodies")
    tap = opened(lookout, bodies=True)
    lookout.submit(b"1")
    (record,) = records(lookout, tap)
    assert base64.b64decode(record["body_base64"][0]) == b"secret"
    # A rule that changes holds for those who listen already.
    lookout.admin.taps.allow("meta")
    lookout.submit(b"2")
    (record,) = records(lookout, tap)
    assert "body_base64" not in record
    assert lookout.ask("tap") == []
    lookout.admin.taps.allow("off")
    assert not lookout.bus.watched
    lookout.submit(b"3")
    assert lookout.told() == []
    lookout.call("tap", {"tap": tap})
    assert "there is no tap" in lookout.answers()[0]


def test_taps_are_leases_and_limited() -> None:
    lookout = Lookout()
    names = [opened(lookout) for _ in range(MAX_TAPS)]
    lookout.call("tap", {})
    assert f"{MAX_TAPS} taps are open" in lookout.answers()[0]
    assert "taps are open" in lookout.ask("tap")[0]["error"]
    lookout.call("tap", {"tap": names[0], "stop": True})
    assert len(lookout.answers()) == 1
    assert len(lookout.admin.taps) == MAX_TAPS - 1
    lookout.tick(POLL_LEASE_S + 1)
    assert len(lookout.admin.taps) == 0
    assert not lookout.bus.watched
    lookout.call("tap", {"tap": names[1]})
    assert "not asked for within" in lookout.answers()[0]


def test_what_has_no_room_is_counted() -> None:
    lookout = Lookout()
    tap = opened(lookout, what="published")
    for number in range(POLL_RECORDS + 7):
        lookout.do(events.Publish(b"t%d" % number, [b""]))
    lookout.call("tap", {"tap": tap, "limit": 10})
    (answer,) = lookout.answers()
    assert (len(answer["records"]), answer["missed"]) == (10, 7)
    assert answer["records"][0]["service"] == "t0"
    assert len(records(lookout, tap, limit=POLL_RECORDS)) == POLL_RECORDS - 10


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff", {"limit": 0}, {"wait_s": -1}, {"wait_s": 1e9}, {"tap": 3}, b"[" * 100_000]
)
def test_wrong_questions_are_refused(body: Any) -> None:
    lookout = Lookout()
    lookout.call("tap", body)
    (answer,) = lookout.answers()
    assert "no question to polybus.tap" in answer
    assert not lookout.bus.watched


def test_nobody_waits_for_a_job_without_reply() -> None:
    lookout = Lookout()
    silent = JobOptions(reply_requested=False)
    lookout.do(events.Submit(CLIENT, VOICE, b"9", b"polybus.tap", [b"{}"], silent, receipt=True))
    lookout.submit(b"1")
    assert lookout.answers() == []
