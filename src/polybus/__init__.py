"""polybus: one ZeroMQ broker for EBUS, eMQP, the Majordomo family and DBP, and its client library.

    from polybus import Bus, Client, Worker

Everything public is here; submodules are internal.  Names are imported when they are first used, so that
importing polybus costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polybus.client.aio import AsyncClient as AsyncClient
    from polybus.client.aio import AsyncWorker as AsyncWorker
    from polybus.client.app import Bus as Bus
    from polybus.client.calls import Call as Call
    from polybus.client.client import Client as Client
    from polybus.client.client import Pending as Pending
    from polybus.client.current import CurrentJob as CurrentJob
    from polybus.client.current import JobInterrupted as JobInterrupted
    from polybus.client.current import current_job as current_job
    from polybus.client.flows import Chain as Chain
    from polybus.client.flows import Group as Group
    from polybus.client.flows import chain as chain
    from polybus.client.flows import group as group
    from polybus.client.handlers import Request as Request
    from polybus.client.handles import JobHandle as JobHandle
    from polybus.client.handles import Schedule as Schedule
    from polybus.client.jobs import Job as Job
    from polybus.client.log_handler import LogHandler as LogHandler
    from polybus.client.pubsub import Subscription as Subscription
    from polybus.client.sessions.port import Options as Options
    from polybus.client.worker import Worker as Worker
    from polybus.errors import ConfigError as ConfigError
    from polybus.errors import ConnectionLost as ConnectionLost
    from polybus.errors import JobCancelled as JobCancelled
    from polybus.errors import JobError as JobError
    from polybus.errors import JobExpired as JobExpired
    from polybus.errors import JobFailed as JobFailed
    from polybus.errors import JobRefused as JobRefused
    from polybus.errors import JobUnconfirmed as JobUnconfirmed
    from polybus.errors import LocalProtocolError as LocalProtocolError
    from polybus.errors import PolybusError as PolybusError
    from polybus.errors import ProtocolError as ProtocolError
    from polybus.errors import RemoteProtocolError as RemoteProtocolError
    from polybus.errors import RequestFailed as RequestFailed
    from polybus.errors import RequestTimeout as RequestTimeout
    from polybus.errors import ResultTimeout as ResultTimeout
    from polybus.errors import UnknownJob as UnknownJob
    from polybus.errors import WorkerRejected as WorkerRejected
    from polybus.wire.ebus_bodies import pack_bson as pack_bson
    from polybus.wire.ebus_bodies import unpack_bson as unpack_bson

    __version__: str

_HOMES = {
    "AsyncClient": "polybus.client.aio",
    "AsyncWorker": "polybus.client.aio",
    "Bus": "polybus.client.app",
    "Call": "polybus.client.calls",
    "Chain": "polybus.client.flows",
    "Client": "polybus.client.client",
    "CurrentJob": "polybus.client.current",
    "Group": "polybus.client.flows",
    "Job": "polybus.client.jobs",
    "JobHandle": "polybus.client.handles",
    "JobInterrupted": "polybus.client.current",
    "LogHandler": "polybus.client.log_handler",
    "Options": "polybus.client.sessions.port",
    "Pending": "polybus.client.client",
    "Request": "polybus.client.handlers",
    "Schedule": "polybus.client.handles",
    "Subscription": "polybus.client.pubsub",
    "Worker": "polybus.client.worker",
    "chain": "polybus.client.flows",
    "current_job": "polybus.client.current",
    "group": "polybus.client.flows",
    "ConfigError": "polybus.errors",
    "ConnectionLost": "polybus.errors",
    "JobCancelled": "polybus.errors",
    "JobError": "polybus.errors",
    "JobExpired": "polybus.errors",
    "JobFailed": "polybus.errors",
    "JobRefused": "polybus.errors",
    "JobUnconfirmed": "polybus.errors",
    "LocalProtocolError": "polybus.errors",
    "PolybusError": "polybus.errors",
    "ProtocolError": "polybus.errors",
    "RemoteProtocolError": "polybus.errors",
    "RequestFailed": "polybus.errors",
    "RequestTimeout": "polybus.errors",
    "ResultTimeout": "polybus.errors",
    "UnknownJob": "polybus.errors",
    "WorkerRejected": "polybus.errors",
    "pack_bson": "polybus.wire.ebus_bodies",
    "unpack_bson": "polybus.wire.ebus_bodies",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("polybus")
    elif name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'polybus' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
