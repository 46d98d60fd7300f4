"""What the bus looks like from outside, as far as it is not plain copying."""

from __future__ import annotations

from polybus.core.model import Service
from polybus.core.views import RATE_SPAN_S, Rates


def test_a_rate_is_counted_over_the_last_seconds() -> None:
    rates = Rates()
    service = Service(b"mail")
    services = {b"mail": service}
    rates.sample(services, 100.0)
    assert rates.of(service, 100.0) == 0.0
    service.answered = 30
    service.failed = 20
    assert rates.of(service, 110.0) == 5.0
    rates.sample(services, 110.0)
    assert rates.of(service, 120.0) == 2.5
    rates.sample(services, 110.0 + RATE_SPAN_S)
    # What was done before the older of the two counts is not counted any more.
    assert rates.of(service, 120.0) == 0.0


def test_a_count_is_not_taken_too_often() -> None:
    rates = Rates()
    service = Service(b"mail")
    for step in range(10):
        rates.sample({b"mail": service}, 100.0 + step)
        service.answered += 10
    assert 9.0 < rates.of(service, 110.0) < 11.0


def test_a_new_service_has_done_all_it_did_since_the_count() -> None:
    rates = Rates()
    rates.sample({}, 100.0)
    service = Service(b"new")
    service.answered = 20
    assert rates.of(service, 110.0) == 2.0
