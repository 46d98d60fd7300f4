"""How entries look on disk. These bytes are in people's stores: a change here needs a migration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polybus.core.ledger import JobEntry, NodeEntry, Started, Valued
from polybus.core.model import JobOptions
from polybus.store.codec import CODECS, Delay, Group, checksum
from support.ledgers import history, job, letter, outcome, run, schedule, token

ENTRIES: dict[str, Any] = {
    "job": job(1),
    "started": Started(token(1), 2, "worker-1"),
    "delay": Delay(token(1), 1, 1.9e9, history(1)),
    "outcome": outcome(1),
    "dead": letter(1),
    "schedule": schedule("a", 1.0),
    "run": run("a", 1.0),
    "grouping": Group(b"g", b"state"),
    "last_value": Valued(b"weather/rome", [b"sunny"], 1.7e9),
    "node": NodeEntry(b"thermo", b'{"ip": "127.0.0.1"}', 2.5, "document.none.text", 1.7e9),
}

FIRST_VERSION = {
    "job": (
        "9ec40a30313233616263642d31a4656d7170c4080001636c69656e74c409726571756573742d31a4656d7170c405656d"
        "61696c92c404626f6479c4013182a967756172616e746565c3a77265747269657303cb41d954fc40400000cb41d954fc"
        "8b400000cb000000000000000000a090"
    ),
    "started": ("93c40a30313233616263642d3102a8776f726b65722d31"),
    "delay": (
        "84a5746f6b656ec40a30313233616263642d31a7617474656d707401a66475655f6174cb41dc4fecc0000000a7686973"
        "746f72799185a66e756d62657201a26174cb41d954fc40000000a6776f726b6572a8776f726b65722d30a6726561736f"
        "6ea66661696c6564a664657461696cae56616c75654572726f723a206e6f"
    ),
    "outcome": (
        "99c40a30313233616263642d31a4656d7170c4080001636c69656e74c409726571756573742d31c405656d61696ccb41"
        "dad27480000000a0a091c40474727565"
    ),
    "dead": (
        "84a36a6f628ea5746f6b656ec40a30313233616263642d31a46c696e6ba4656d7170a86964656e74697479c408000163"
        "6c69656e74aa726571756573745f6964c409726571756573742d31a5766f696365a4656d7170a773657276696365c405"
        "656d61696ca4626f647992c404626f6479c40131a76f7074696f6e7388af7265706c795f726571756573746564c3a967"
        "756172616e746565c3a77265747269657303a974696d656f75745f73cb0000000000000000a56f7468657290a9626163"
        "6b6f66665f73c0a47468656e90a567726f7570c400ab61636365707465645f6174cb41d954fc40400000aa6578706972"
        "65735f6174cb41d954fc8b400000a66475655f6174cb0000000000000000a7617474656d707403a6776f726b6572a0a7"
        "686973746f72799385a66e756d62657201a26174cb41d954fc40000000a6776f726b6572a8776f726b65722d30a67265"
        "61736f6ea66661696c6564a664657461696cae56616c75654572726f723a206e6f85a66e756d62657202a26174cb41d9"
        "54fc40400000a6776f726b6572a8776f726b65722d31a6726561736f6ea66661696c6564a664657461696cae56616c75"
        "654572726f723a206e6f85a66e756d62657203a26174cb41d954fc40800000a6776f726b6572a8776f726b65722d32a6"
        "726561736f6ea66661696c6564a664657461696cae56616c75654572726f723a206e6fa26174cb41dad27480400000a6"
        "726561736f6ea66661696c6564a664657461696ca26e6f"
    ),
    "schedule": (
        "8ba36b6579a161a57175657565c405656d61696ca76d657373616765c40b5b2272756e222c207b7d5da76f7074696f6e"
        "7388af7265706c795f726571756573746564c2a967756172616e746565c2a77265747269657300a974696d656f75745f"
        "73cb0000000000000000a56f7468657290a96261636b6f66665f73c0a47468656e90a567726f7570c400aa696e746572"
        "76616c5f73c0a463726f6eab2a2f35202a202a202a202aa874696d657a6f6e65a3555443a972756e735f6c656674c0a7"
        "6e6578745f6174cb3ff0000000000000a66d6973736564a46c617465aa637265617465645f6174cb41d954fc40000000"
    ),
    "run": (
        "86a36b6579a161a66475655f6174cb3ff0000000000000a26174cb3ff8000000000000a477686174a372616ea66d6973"
        "73656400a5746f6b656ec40a30313233616263642d31"
    ),
    "grouping": ("92c40167c4057374617465"),
    "last_value": ("93c40c776561746865722f726f6d6591c40573756e6e79cb41d954fc40000000"),
    "node": (
        "85a46e616d65c406746865726d6fa4696e666fc4137b226970223a20223132372e302e302e31227dab68656172746265"
        "61745f73cb4004000000000000a3686f77b2646f63756d656e742e6e6f6e652e74657874ad726567697374657265645f"
        "6174cb41d954fc40000000"
    ),
}
CHECKSUMS = {
    "job": 2371472361,
    "started": 541626410,
    "delay": 1134069455,
    "outcome": 361405678,
    "dead": 1643550537,
    "schedule": 2457753099,
    "run": 1644956657,
    "grouping": 3218137415,
    "last_value": 2589480972,
    "node": 1205987062,
}


@pytest.mark.parametrize("table", CODECS)
def test_rows_of_the_first_version_can_be_read(table: str) -> None:
    assert CODECS[table].unpack(bytes.fromhex(FIRST_VERSION[table])) == ENTRIES[table]


@pytest.mark.parametrize("table", CODECS)
def test_checksums_are_those_of_the_first_version(table: str) -> None:
    assert checksum(CODECS[table].tag, 1, bytes.fromhex(FIRST_VERSION[table])) == CHECKSUMS[table]


@pytest.mark.parametrize("table", CODECS)
def test_entries_come_back_as_they_were(table: str) -> None:
    codec, entry = CODECS[table], ENTRIES[table]
    again = codec.unpack(codec.pack(entry))
    assert again == entry
    assert type(again) is type(entry)
    assert codec.key(again) is not None


def test_every_field_of_a_job_is_kept() -> None:
    """A field that is new in the core must be written here too."""
    options = JobOptions(
        reply_requested=False,
        guarantee=True,
        retries=1,
        timeout_s=2.5,
        other=("x", "y"),
        backoff_s=0.5,
        then=(b"next",),
        group=b"group",
    )
    full = job(
        1,
        options=options,
        due_at=3.0,
        attempt=2,
        worker="w",
        history=history(2),
        accepted_at=1.25,
    )
    assert CODECS["job"].unpack(CODECS["job"].pack(full)) == full
    for field in msgspec.structs.fields(JobEntry):
        assert getattr(full, field.name) != field.default, f"{field.name} is not tried here"


@pytest.mark.parametrize("table", ["job", "started", "outcome"])
def test_arrays_have_every_field(table: str) -> None:
    entry = ENTRIES[table]
    assert len(msgspec.msgpack.decode(CODECS[table].pack(entry))) == len(entry.__struct_fields__)


def test_every_option_is_kept() -> None:
    fields = {field.name: field.default for field in msgspec.structs.fields(JobOptions)}
    for name, default in fields.items():
        value: Any = {bool: True, int: 7, float: 7.5, bytes: b"z", tuple: (), type(None): 1.5}[type(default)]
        if isinstance(default, bool):
            value = not default
        if isinstance(default, tuple):
            value = (b"z",) if name == "then" else ("z",)
        entry = job(1, options=JobOptions(**{name: value}))
        assert CODECS["job"].unpack(CODECS["job"].pack(entry)) == entry


def test_the_same_bytes_elsewhere_have_another_checksum() -> None:
    here = checksum(1, 1, b"payload")
    assert (
        len(
            {
                here,
                checksum(1, 2, b"payload"),
                checksum(2, 1, b"payload"),
                checksum(1, 1 + (1 << 40), b"payload"),
            }
        )
        == 4
    )
