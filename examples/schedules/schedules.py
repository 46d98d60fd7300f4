"""Jobs that the broker starts by itself: by interval, by cron, and how to see and end them.

polybus serve
polybus worker schedules:bus    # in this folder
python schedules.py
"""

from __future__ import annotations

from polybus import Bus, Client, current_job

bus = Bus()


@bus.job
def measure(station: str) -> None:
    """Runs in a worker; what it finds goes out on a topic."""
    with Client(dialect="ebus") as client:
        client.publish(f"measured.{station}", b"attempt %d" % current_job().attempt)


def main() -> None:
    # Three times, the first one at once. The key is the schedule's name: set again, it is replaced.
    with Client(dialect="emqp") as client, client.subscribe("measured.rome") as news:
        # A subscription takes a moment to reach the broker; when it hears this, it misses nothing any more.
        client.publish("measured.rome", b"soon")
        for _, word in news:
            if word == b"soon":
                break
        schedule = measure.schedule(every_s=0.2, runs=3, haste=True, key="rome", args=("rome",))
        print("set:", schedule.key)
        for _ in range(3):
            heard = news.get(timeout_s=20)
            print("ran:", heard and f"{heard[0]}, {heard[1].decode()}")

    measure.schedule(cron="30 2 * * *", timezone="Europe/Berlin", key="nightly", args=("berlin",))
    (nightly,) = (row for row in bus.schedules() if row["key"] == "nightly")
    print("set:", nightly["key"], nightly["cron"], nightly["timezone"])
    print("removed:", bus.unschedule("nightly"), "and again:", bus.unschedule("nightly"))
    bus.close()


if __name__ == "__main__":
    # Under its own name, by which the worker knows the job.
    import schedules

    schedules.main()
