"""Durable jobs: sent once, run by a worker, retried when they fail, found again by their id.

polybus serve
polybus worker jobs:bus         # in this folder
python jobs.py
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from polybus import Bus, JobCancelled, JobFailed, current_job

bus = Bus()


@dataclass
class Invoice:
    number: int
    due: date


@bus.job(queue="email", retries=3, timeout_s=60)
def send(to: str, subject: str) -> str:
    return f"sent {subject!r} to {to}"


@bus.job
def remind(invoice: Invoice, days: int) -> Invoice:
    return Invoice(invoice.number, invoice.due + timedelta(days=days))


@bus.job(retries=2, backoff_s=0.1)
def fetch(url: str) -> str:
    job = current_job()
    if job.attempt == 1:
        raise ConnectionError(f"{url} does not answer")
    return f"fetched {url} at attempt {job.attempt}"


@bus.job
def pay(amount: int) -> None:
    raise ValueError(f"no money for {amount}")


def main() -> None:
    # On disk when this returns; it runs whatever dies from now on.
    handle = send.delay("ada@example.org", "hello")
    print(handle.get(timeout_s=30))

    # Dataclasses and dates arrive as what they are.
    print(remind.delay(Invoice(7, date(2026, 2, 27)), days=2).get(timeout_s=30))

    print(fetch.delay("example.org").get(timeout_s=30))

    try:
        pay.delay(100).get(timeout_s=30)
    except JobFailed as error:
        print(f"failed after {len(error.history)} attempt: {error.detail}")

    # The same id is the same job: this is sent once, however often the program runs.
    for _ in range(3):
        print(send.send(("bob@example.org", "invoice 7"), id="invoice-7").get(timeout_s=30))

    later = send.send(("eve@example.org", "too late"), delay_s=3600)
    print(f"{later.state()}, then cancelled: {later.cancel()}")
    try:
        later.get(timeout_s=30)
    except JobCancelled as error:
        print(type(error).__name__)

    handles = bus.send_many(send.s(f"{number}@example.org", "news") for number in range(1000))
    print(f"{len(handles)} on disk, the last one: {handles[-1].get(timeout_s=30)}")


if __name__ == "__main__":
    # Under its own name, by which the worker knows the jobs.
    import jobs

    jobs.main()
