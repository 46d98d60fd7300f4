"""Settings: flag > environment > file > default, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zmq

from polybus import config
from polybus.errors import ConfigError
from polybus.server.links import bind, make_socket

# Settings that do not take any number or text.
NARROW = {
    "jitter": "0.5",
    "timezone": "Europe/Berlin",
    "missed": "skip",
    "liveness": "3",
    "tap": "off",
    "disconnect": "any",
    "udp": "17",
    "buffer_bytes": "1048576",
    "pump": "pyzmq",
    "log_format": "json",
}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "polybus.toml"
    path.write_text(text)
    return path


def test_everything_has_a_default() -> None:
    settings = config.load(None, environ={})
    assert settings == config.Settings()
    assert settings.broker.host == "127.0.0.1"


def test_the_nearest_source_wins(tmp_path: Path) -> None:
    path = written(tmp_path, "[ebus]\nheartbeat_s = 1\nliveness = 11\nexpiry_s = 111\n")
    environ = {"POLYBUS_EBUS_LIVENESS": "22", "POLYBUS_EBUS_EXPIRY_S": "222"}
    settings = config.load(path, {"ebus.expiry_s": 333}, environ).ebus
    assert (settings.heartbeat_s, settings.liveness, settings.expiry_s) == (1.0, 22, 333.0)
    assert settings.worker_credit == config.EbusSettings().worker_credit


def test_a_flag_that_was_not_given_is_none(tmp_path: Path) -> None:
    environ = {"POLYBUS_BROKER_NAME": "from-env"}
    assert config.load(None, {"broker.name": None}, environ).broker.name == "from-env"


def test_the_file_of_this_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, '[broker]\nname = "here"\n')
    monkeypatch.chdir(tmp_path)
    assert config.load(environ={}).broker.name == "here"


@pytest.mark.parametrize("section", config.SECTIONS)
def test_every_setting_has_its_variable(section: str) -> None:
    default = getattr(config.Settings(), section)
    for field in msgspec.structs.fields(default):
        value = getattr(default, field.name)
        if isinstance(value, tuple):
            # Tested beside what may be in them.
            continue
        text = NARROW.get(field.name) or {bool: "false", int: "17", float: "17.5", str: "text"}[type(value)]
        environ = {config.variable(f"{section}.{field.name}"): text}
        found = getattr(getattr(config.load(None, environ=environ), section), field.name)
        assert str(found).lower() == text.lower()


def test_the_working_environment_is_used_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYBUS_LIMITS_QUEUE_LENGTH", "5")
    assert config.load().limits.queue_length == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ebus]\nfrontent = 1\n", "frontent"),
        ("[ebuz]\n", "ebuz"),
        ("[limits]\nqueue_lenght = 1\n", "queue_lenght"),
        ('[ebus]\nliveness = "many"\n', "ebus.liveness"),
        ("[ebus]\nstrict = 5\n", "ebus.strict"),
        ("ebus = 5\n", "ebus"),
        ("[ebus\n", "no valid TOML"),
        ("[ebus]\nfrontend = 70000\n", "a port number from 0 to 65535"),
        ('[dbp]\nport = "five"\n', "or an endpoint such as tcp://"),
        ("[admin]\nport = -2\n", "-1 to turn it off"),
        ("[jobs]\nbackoff_s = 0\n", "jobs.backoff_s"),
        ("[jobs]\nbackoff_s = 20\nbackoff_max_s = 10\n", "the largest pause cannot be smaller"),
        ("[jobs]\njitter = 2\n", "jobs.jitter"),
        (
            '[jobs]\ntimezone = "Europe"\n',
            "an IANA name that this machine knows, such as UTC or Europe/Berlin",
        ),
        ('[jobs]\nmissed = "never"\n', "jobs.missed"),
        ("[jobs]\ndead_letters = 0\n", "jobs.dead_letters"),
        ('[queues."mail.*"]\nretries = 2\n[queues."a.b"]\nretries = -1\n', 'queues."a.b".retries'),
        ('[queues."mail"]\nretires = 2\n', "retires"),
        ("[queues.mail]\nconcurrency = 1.5\n", 'queues."mail".concurrency'),
        ('[queues.""]\nretries = 2\n', "queues"),
        ("[queues]\nmail = 5\n", 'queues."mail"'),
        ("queues = 5\n", "queues"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text), environ={})
    assert words in str(caught.value)


PORT_WORDS = (
    "a port number from 0 to 65535 (0: any free one), -1 to turn it off, "
    "or an endpoint such as tcp://127.0.0.1:5000"
)
OTHER_TAGS = "MDPC01, MDPC02, MDPW01, MDPW02"


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ('emqp.disconnect = "never"', '"admin" or "any"'),
        ("ebus.liveness = 0", "a whole number from 1 to 1000000000"),
        ("ebus.heartbeat_s = 0", "a number of seconds, more than 0 and at most 31536000"),
        ("ebus.strict = 5", "true or false"),
        ("ebus.frontend = 1.5", PORT_WORDS),
        ("dbp.port = 70000", PORT_WORDS),
        ('dbp.udp = "x"', PORT_WORDS),
        ("limits.nodes = -1", "a whole number, at least 1"),
        ("logs.bytes = 0", "a whole number of bytes from 1 to 1099511627776"),
        ('majordomo.client_tag = ""', "text of 1 to 255 characters"),
        (
            'majordomo.worker_tag = "MDPC01"',
            f"any text but {OTHER_TAGS}, which are other dialects on the same sockets",
        ),
        (
            "beacon.addresses = 5",
            'a list of texts: ["a", "b"] in the file, a,b in the environment and after --set',
        ),
        ('jobs.timezone = "Europe"', "an IANA name that this machine knows, such as UTC or Europe/Berlin"),
        ('broker.pump = "fast"', '"" or "compiled" or "pyzmq"'),
        ('queues."mail".retries = "often"', "a whole number from 0 to 1000"),
        ('queues."a.b".rate_per_s = -1', "a number a second from 0 to 1000000"),
    ],
)
def test_an_error_says_which_value_from_where_and_what_is_allowed(
    tmp_path: Path, line: str, takes: str
) -> None:
    path = written(tmp_path, line)
    with pytest.raises(ConfigError) as caught:
        config.load(path, environ={})
    assert str(caught.value) == f"{line}, from the file {path}, is not allowed: it takes {takes}."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'beacon.addresses = ["eth0"]',
            'beacon.addresses = "eth0", from FILE, is not allowed: '
            "it takes IPv4 addresses such as 10.0.0.255; beacon.interfaces takes names.",
        ),
        (
            'bridge.name = "a"\nbridge.peers = ["b:1"]',
            'bridge.peers = "b:1", from FILE, is not allowed: '
            "it takes endpoints such as tcp://192.0.2.7:5241: the bridge port of another broker.",
        ),
        (
            "jobs.backoff_max_s = 0.5",
            "jobs.backoff_max_s = 0.5, from FILE, is less than jobs.backoff_s = 1, from the default: "
            "the largest pause cannot be smaller than the first one.",
        ),
        (
            'majordomo.client_tag = "MDRW01"',
            "majordomo.client_tag (from FILE) and majordomo.worker_tag (from the default) are both "
            f'"MDRW01": they must differ from each other and from {OTHER_TAGS}.',
        ),
        (
            '[queues."a"]\nretires = 2\n',
            'there is no setting queues."a".retires = 2, from FILE; did you mean queues."a".retries?',
        ),
        (
            '[queues.""]\nretries = 2\n',
            '[queues.""], from FILE, is not allowed: the name of a queue takes 1 to 255 characters.',
        ),
        (
            "[ebus]\nfrontent = 1\n",
            "there is no setting ebus.frontent = 1, from FILE; did you mean ebus.frontend?",
        ),
        (
            "[telemetry]\nxyz = 1\n",
            "there is no setting telemetry.xyz = 1, from FILE; there are traces.",
        ),
        ("[ebuz]\n", "there is no section [ebuz], from FILE; did you mean ebus?"),
        (
            "ebus = 5\n",
            "ebus = 5, from FILE, is not allowed: [ebus] must be a table of settings, one line for each.",
        ),
        (
            "queues = 5\n",
            "queues = 5, from FILE, is not allowed: [queues] must be a table of settings, one line for each.",
        ),
    ],
)
def test_an_error_about_more_than_one_value(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load(path, environ={})
    assert str(caught.value) == sentence.replace("FILE", f"the file {path}")


def test_an_error_names_the_nearest_source_of_the_value(tmp_path: Path) -> None:
    path = written(tmp_path, '[emqp]\ndisconnect = "admin"\n')
    environ = {"POLYBUS_EMQP_DISCONNECT": "never"}
    with pytest.raises(
        ConfigError, match='"never", from the environment variable POLYBUS_EMQP_DISCONNECT, is'
    ):
        config.load(path, environ=environ)
    flag = {"emqp.disconnect": "sometimes"}
    with pytest.raises(ConfigError, match='"sometimes", from the option --set, is'):
        config.load(path, flag, environ, {"emqp.disconnect": "the option --set"})
    with pytest.raises(ConfigError, match='"sometimes", from the program that started this, is'):
        config.load(path, flag, environ)
    with pytest.raises(ConfigError, match=r'queues\."a\.b"\.retries = "x", from the option --set, is'):
        config.load(path, {"queues.a.b.retries": "x"}, {}, {"queues.a.b.retries": "the option --set"})


def test_all_wrong_settings_are_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, '[emqp]\ndisconnect = "never"\n[jobs]\nmissed = "never"\n[ebuz]\n')
    with pytest.raises(ConfigError) as caught:
        config.load(path, environ={})
    text = str(caught.value)
    assert text.startswith("3 settings are wrong. ")
    assert all(words in text for words in ("emqp.disconnect", "jobs.missed", "[ebuz]"))


def test_every_setting_says_what_it_takes_in_words() -> None:
    for section, make in config.SECTIONS.items():
        for field in msgspec.structs.fields(make):
            name = f"{section}.{field.name}"
            if field.type is str:
                # It takes everything.
                continue
            with pytest.raises(ConfigError) as caught:
                config.load(None, {name: {"no": "value"}}, {})
            text = str(caught.value)
            assert text.startswith(f"{name} = ")
            assert "another kind of value" not in text
            assert not any(word in text for word in ("Expected", "`", "null"))


def test_a_section_that_is_no_table_is_an_error_for_the_environment_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table of settings"):
        config.load(written(tmp_path, "ebus = 5\n"), environ={"POLYBUS_EBUS_LIVENESS": "3"})


def test_a_wrong_variable_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"majordomo\.liveness"):
        config.load(None, environ={"POLYBUS_MAJORDOMO_LIVENESS": "many"})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Check --config"):
        config.load(tmp_path / "missing.toml", environ={})
    with pytest.raises(ConfigError, match="cannot read"):
        config.load(tmp_path, environ={})
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        config.load(path, environ={})


# -- queues -------------------------------------------------------------------------------------------


def test_queues_are_a_table_of_tables_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [queues."mail.*"]
        guarantee = true
        retries = 3
        timeout_s = 60
        [queues.mail]
        concurrency = 2
        rate_per_s = 0.5
        weight = 20
        """,
    )
    assert list(config.load(path, environ={}).queues.items()) == [
        ("mail.*", config.QueueSettings(guarantee=True, retries=3, timeout_s=60.0)),
        ("mail", config.QueueSettings(concurrency=2, rate_per_s=0.5, weight=20)),
    ]


def test_a_flag_may_set_an_option_of_a_queue(tmp_path: Path) -> None:
    path = written(tmp_path, "[queues.mail]\nretries = 1\nweight = 4\n")
    flags = {"queues.mail.retries": "3", "queues.a.b.*.guarantee": "true"}
    assert config.load(path, flags, {}).queues == {
        "mail": config.QueueSettings(retries=3, weight=4),
        "a.b.*": config.QueueSettings(guarantee=True),
    }
    with pytest.raises(ConfigError, match=r'queues\."mail"\.retries'):
        config.load(path, {"queues.mail.retries": "often"}, {})
    with pytest.raises(ConfigError, match="table of settings"):
        config.load(written(tmp_path, "[queues]\nmail = 5\n"), {"queues.mail.retries": "3"}, {})


# -- ports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "place"),
    [
        (5000, "tcp://127.0.0.1:5000"),
        ("5000", "tcp://127.0.0.1:5000"),
        (0, "tcp://127.0.0.1:*"),
        (65535, "tcp://127.0.0.1:65535"),
        (-1, None),
        ("-1", None),
        ("tcp://0.0.0.0:1", "tcp://0.0.0.0:1"),
        ("ipc:///run/bus", "ipc:///run/bus"),
    ],
)
def test_forms_of_a_port(port: object, place: str | None) -> None:
    settings = config.load(None, {"ebus.frontend": port}, {})
    assert config.endpoint(settings, "ebus.frontend") == place


def test_a_dialect_that_is_off_has_no_ports() -> None:
    settings = config.load(None, {"emqp.enabled": "false"}, {})
    assert config.endpoint(settings, "emqp.clients") is None
    assert config.endpoint(settings, "ebus.frontend")


def test_the_host_holds_for_all_ports() -> None:
    settings = config.load(None, {"broker.host": "0.0.0.0", "bridge.name": "named"}, {})
    for name in config.PORTS:
        kind = "udp" if name == "dbp.udp" else "tcp"
        assert str(config.endpoint(settings, name)).startswith(f"{kind}://0.0.0.0:")


def test_free_ports_for_all() -> None:
    settings = config.load(None, {**config.any_free_ports(), "bridge.name": "named"}, {})
    places = {config.endpoint(settings, name) for name in config.PORTS}
    assert places == {"tcp://127.0.0.1:*", "udp://127.0.0.1:*"}


def test_whoever_takes_free_ports_announces_nothing() -> None:
    assert config.load(None, {}, {}).beacon.enabled
    assert not config.load(None, config.any_free_ports(), {"POLYBUS_BEACON_ENABLED": "true"}).beacon.enabled


def test_a_list_is_written_with_commas_or_as_a_list(tmp_path: Path) -> None:
    environ = {"POLYBUS_BEACON_ADDRESSES": "10.0.0.255, 10.0.1.255", "POLYBUS_BEACON_INTERFACES": ""}
    beacon = config.load(None, {"beacon.interfaces": "eth0,eth1"}, environ).beacon
    assert beacon.addresses == ("10.0.0.255", "10.0.1.255")
    assert beacon.interfaces == ("eth0", "eth1")
    path = written(tmp_path, '[beacon]\naddresses = ["10.0.0.255"]\n')
    assert config.load(path, {}, {}).beacon.addresses == ("10.0.0.255",)
    flag = {"bridge.peers": '["tcp://10.0.0.1:5241", "tcp://[::1]:5241"]', "bridge.name": "lab"}
    assert config.load(None, flag, {}).bridge.peers == ("tcp://10.0.0.1:5241", "tcp://[::1]:5241")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beacon.addresses": "eth0"}, "beacon.interfaces"),
        ({"beacon.addresses": "::1"}, "IPv4"),
        ({"beacon.every_s": "0.5"}, "beacon.every_s"),
        ({"beacon.port": "0"}, "beacon.port"),
        ({"beacon.port": "65536"}, "beacon.port"),
    ],
)
def test_what_a_beacon_cannot_be(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.load(None, settings, {})


# -- binding ------------------------------------------------------------------------------------------


def test_a_port_in_use_says_which_setting_moves_it() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        first, second = (make_socket(context, zmq.ROUTER, config.BrokerSettings()) for _ in range(2))
        place = bind(first, "tcp://127.0.0.1:*", "ebus.frontend")
        assert not place.endswith("*")
        with pytest.raises(ConfigError) as caught:
            bind(second, place, "ebus.backend")
        text = str(caught.value)
        assert place in text
        assert "is in use" in text
        assert "POLYBUS_EBUS_BACKEND" in text
        with pytest.raises(ConfigError, match="Check the address"):
            bind(second, "tcp://no such host:1", "ebus.backend")
    finally:
        context.destroy(linger=0)


def test_marks_are_set_before_binding() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        router = make_socket(context, zmq.ROUTER, config.BrokerSettings(pipe_messages=7, backlog=9))
        assert (router.get(zmq.SNDHWM), router.get(zmq.RCVHWM), router.get(zmq.BACKLOG)) == (7, 7, 9)
        assert router.linger == 0
    finally:
        context.destroy(linger=0)
