"""The settings of each section: their names, what they may be, and their defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from polybus.core import logs
from polybus.core.last_values import BYTES, COUNT
from polybus.core.model import Limits, QueuePolicy

Port = int | str
# What a setting may be; anything else is refused with its name.
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
SecondsOrNever = Annotated[float, Meta(ge=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Tag = Annotated[str, Meta(min_length=1, max_length=255)]
# A policy is what the core takes; its ranges stand beside its fields.
QueueSettings = QueuePolicy
QueuePattern = Annotated[str, Meta(min_length=1, max_length=255)]


class BrokerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Where ports are bound. Beyond loopback anyone who reaches the machine may call, offer and administer.
    host: str = "127.0.0.1"
    # Where the store, the journal and, while it runs, endpoints.json are.
    data_dir: str = "var"
    # What other components call this broker.
    name: str = "polybus"
    # How long a stopping broker waits for unanswered requests.
    drain_s: SecondsOrNever = 10.0
    # Threads of libzmq that move bytes; one moves several gigabits.
    io_threads: Annotated[int, Meta(ge=1, le=64)] = 1
    # Messages a peer's pipe holds before the broker is told that it is full.
    pipe_messages: Count = 20_000
    # Bytes of publications that wait for one subscriber; more are dropped, counted.
    pipe_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = 16 * 1024 * 1024
    # Connections waiting to be accepted: thousands of workers reconnect at once after a restart.
    backlog: Count = 4096
    # What moves messages: "compiled", "pyzmq", or empty: the fastest there is.
    pump: Literal["", "compiled", "pyzmq"] = ""
    # How lines on standard error are written: for people ("text"), or one JSON object each ("json"). Empty:
    # as POLYBUS_LOG_FORMAT says, which holds for workers and the dashboard, too; or as text.
    log_format: Literal["", "text", "json"] = ""


class EbusSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether the dialect is spoken at all.
    enabled: bool = True
    # Clients.
    frontend: Port = 5000
    # Workers.
    backend: Port = 5001
    # Where PUB sockets connect.
    publish: Port = 5002
    # Where SUB sockets connect.
    subscribe: Port = 5003
    # A PING after `heartbeat_s` of silence; a worker is lost after `liveness` times that.
    heartbeat_s: Seconds = 0.5
    liveness: Count = 5
    # When a request is stale that does not say so itself.
    expiry_s: Seconds = 300.0
    # Requests at once for a worker that names no credit: EBUS has no word for it, and upstream workers take
    # whatever comes.
    worker_credit: Count = 100
    # Send the document's tables and nothing else. Peers of the public implementation do not read them.
    strict: bool = False


class EmqpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether the dialect is spoken at all.
    enabled: bool = True
    # Clients and schedulers.
    clients: Port = 47291
    # Workers.
    workers: Port = 47290
    # Questions of eMQP's own tools; DISCONNECT here drains the broker.
    admin: Port = 47293
    # PUBLISH messages.
    publish: Port = 47298
    # Where SUB sockets connect.
    subscribe: Port = 47299
    # How often the broker beats.
    heartbeat_s: Seconds = 3.0
    # A worker is lost after a silence of `timeout_s` times `liveness`.
    timeout_s: Seconds = 5.0
    liveness: Count = 3
    # Jobs wait for a worker as long as it takes; 0 means that they never grow stale.
    expiry_s: SecondsOrNever = 0.0
    # Where jobs go whose queue has no workers, if this one has some.
    default_queue: str = "default"
    # Where DISCONNECT stops the broker: on the admin port alone, or on those of clients and workers as well.
    disconnect: Literal["admin", "any"] = "admin"
    # Send the document's form where the public implementation's is another.
    strict: bool = False


class MajordomoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether the dialect is spoken at all.
    enabled: bool = True
    # Either port takes either role, and all three dialects.
    clients: Port = 5555
    workers: Port = 5556
    # How often heartbeats go; a worker that misses `liveness` of them is lost.
    heartbeat_s: Seconds = 2.5
    liveness: Count = 3
    # The request-id draft leaves its frame 0 open: what stands there, from clients and from workers.
    client_tag: Tag = "MDRC01"
    worker_tag: Tag = "MDRW01"


class DbpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether the dialect is spoken at all.
    enabled: bool = True
    # Nodes and clients.
    port: Port = 5246
    # The UDP port for heartbeats; empty: the same number as `port`.
    udp: Port = ""
    # The UDP port on which nodes listen for the broker's heartbeats, which go where the beacon goes; 0: none
    # are broadcast. It is not the beacon's: upstream's nodes take whatever comes there for a beacon.
    broadcast_port: Annotated[int, Meta(ge=0, le=65535)] = 5247
    # A node is gone after this many missed heartbeats, asked in between.
    liveness: Annotated[int, Meta(ge=3, le=5)] = 4
    # Nodes that name no heartbeat are asked this often whether they are there; 0: never, they stay for ever.
    heartbeat_s: SecondsOrNever = 10.0
    # Send the document's form where the public implementation's is another.
    strict: bool = False


class BeaconSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether nodes on this machine, or on the networks that the broker listens on, are told where DBP is.
    enabled: bool = True
    # Where the nodes listen.
    port: Annotated[int, Meta(ge=1, le=65535)] = 5245
    # Never more often than once a second: every node of the network gets it.
    every_s: Annotated[float, Meta(ge=1, le=3600)] = 1.0
    # Where to send it. Empty: loopback while the broker listens there, and the broadcast addresses of the
    # interfaces that it was bound to beyond that.
    addresses: tuple[str, ...] = ()
    # By which interfaces it may leave. Empty: all that the broker is bound to.
    interfaces: tuple[str, ...] = ()


class JobsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Without a store nothing survives the broker, so guarantees are refused.
    store: bool = True
    # The pause before the first retry of a job; each further one is twice as long, up to the largest.
    backoff_s: Seconds = 1.0
    backoff_max_s: Seconds = 300.0
    # Pauses are this much longer or shorter by chance, so that what failed together is not tried together.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1
    # In which cron expressions without a zone of their own are read.
    timezone: str = "UTC"
    # Due times that passed while the broker was down: one run makes up for them ("late"), or none ("skip").
    missed: Literal["late", "skip"] = "late"
    # Kept at most; the oldest leave first and are counted.
    dead_letters: Count = 100_000
    # How long the result of a guaranteed job can be asked for.
    results_age_s: Seconds = 86_400.0


class LastValuesSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether the newest message of every topic is kept for subscribers that come later.
    enabled: bool = True
    # Those that were updated the longest time ago leave first, counted. Each counts its bytes twice and 500
    # more: it is kept as it came and as subscribers get it.
    count: Count = COUNT
    bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = BYTES
    # Whether they are there again after a restart, but for what changed in the last second of a crash.
    durable: bool = True


class MonitorSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Who listens in on a service sees that messages pass ("meta"), also their bodies ("bodies"), or nothing.
    tap: Literal["off", "meta", "bodies"] = "meta"


class LogsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Records kept at most; ordinary ones leave first, counted. Each counts its bytes and 400 more.
    count: Count = logs.COUNT
    bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = logs.BYTES
    # How long debug and info are kept, and how long warnings and worse.
    age_s: Seconds = logs.AGE_S
    warnings_age_s: Seconds = logs.WARNINGS_AGE_S


class JournalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether everything that flows is written down.
    enabled: bool = True
    # Larger bodies are not kept, only their sizes.
    body_bytes: Annotated[int, Meta(ge=0, le=1 << 24)] = 4096
    # Services and topics whose bodies are not kept at all, by pattern (`secret.*`).
    no_bodies: tuple[str, ...] = ()
    # How many bytes of records may wait for the disk in the broker's memory. While more than half of that
    # waits, records are written without their bodies; what does not fit is lost. Both are counted and told.
    buffer_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 36)] = 256 * 1024 * 1024
    # Whether the broker has a process at its side that makes segments of it and tidies up. Without one
    # somebody else does that ('polybus archive'), or the oldest logs go when there are too many bytes.
    archive: bool = True
    # Whole hours go, the oldest first, when they are older than this, or when there are more bytes in all.
    keep_days: Annotated[float, Meta(gt=0, le=36_500)] = 7.0
    keep_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] = 10 * 1024 * 1024 * 1024
    # The small segments of an hour become few large ones so long after it has ended.
    compact_after_s: SecondsOrNever = 300.0


class BridgeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # What other brokers call this one; no two may have the same. Without a name there is no bridge.
    name: str = ""
    # Where other brokers dial us, and those that we dial: tcp://192.0.2.7:5241.
    port: Port = 5241
    peers: tuple[str, ...] = ()
    # Services (patterns) that others may reach here, and that we take from others; empty: all.
    services: tuple[str, ...] = ("*",)
    accept: tuple[str, ...] = ()
    # How topics begin that cross, in both directions.
    topics: tuple[str, ...] = ()
    # Brokers that may link. Empty: those we dial, and everybody while the broker listens on loopback only.
    allow: tuple[str, ...] = ()
    # Brokers that a message may pass; and requests that a peer may have here at once.
    max_hops: Annotated[int, Meta(ge=1, le=32)] = 8
    credit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    # How often linked brokers beat; one that misses `liveness` of them is lost.
    heartbeat_s: Seconds = 1.0
    liveness: Count = 4
    # The pause before a lost link is dialled again; each further one is twice as long, up to the largest.
    retry_s: Seconds = 0.2
    retry_max_s: Seconds = 10.0

    @property
    def enabled(self) -> bool:
        return bool(self.name)


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Whether a span is made of every request, for OpenTelemetry, which the environment says where to send
    # (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT, …).
    traces: bool = False


class AdminSettings(Struct, frozen=True, forbid_unknown_fields=True):
    # Questions and orders of operators; everything that polybus' own commands ask.
    port: Port = 5240


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    ebus: EbusSettings = field(default_factory=EbusSettings)
    emqp: EmqpSettings = field(default_factory=EmqpSettings)
    majordomo: MajordomoSettings = field(default_factory=MajordomoSettings)
    dbp: DbpSettings = field(default_factory=DbpSettings)
    beacon: BeaconSettings = field(default_factory=BeaconSettings)
    bridge: BridgeSettings = field(default_factory=BridgeSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    limits: Limits = field(default_factory=Limits)
    last_values: LastValuesSettings = field(default_factory=LastValuesSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    logs: LogsSettings = field(default_factory=LogsSettings)
    jobs: JobsSettings = field(default_factory=JobsSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    # By pattern (`mail.*`); the first that matches a queue's name holds for it.
    queues: dict[QueuePattern, QueueSettings] = field(default_factory=dict)
