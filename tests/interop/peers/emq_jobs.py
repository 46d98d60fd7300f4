"""Jobs for EventMQ's job managers. Each run leaves a file, so that tests see who ran what, and how often."""

import json
import os
import time
import uuid
from pathlib import Path

from eventmq.client.jobs import Job, job


def mark(folder, name):
    note(folder, name)
    return name


def add(a, b):
    return a + b


def nothing():
    pass


def fail(text):
    raise ValueError(text)


def hold(folder, name, release):
    """Runs until the file `release` appears in the folder."""
    note(folder, name + ".begun")
    deadline = time.monotonic() + 60
    while not (Path(folder) / release).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    note(folder, name)
    return name


@job
def decorated(folder, name):
    note(folder, name)


@Job(queue="mail")
def decorated_for_mail(folder, name):
    note(folder, name)


def note(folder, name):
    entry = {"name": name, "manager": os.environ.get("MANAGER", ""), "at": time.time()}
    hidden = Path(folder) / f".{uuid.uuid4().hex}"
    hidden.write_text(json.dumps(entry))
    hidden.rename(Path(folder) / f"{name}.{uuid.uuid4().hex}.mark")
