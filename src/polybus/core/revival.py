"""Dead letters that an operator puts back into their queues.

A revived job is guaranteed whatever it was before, because its dead letter goes when its new life is written
down: in one line, so that it is always exactly one of the two.  It keeps its name and its history, with a
mark after which its retries are counted anew.  Whoever sent it was told long ago that it failed; whoever
knows its id may ask for the outcome once more.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import structs

from polybus.core.durable import note_accepted
from polybus.core.flows import member_revived
from polybus.core.intake import admit
from polybus.core.ledger import REVIVED, Attempt, DeadLetter
from polybus.core.model import Reason
from polybus.core.records import Request, new_request
from polybus.core.replies import body_size
from polybus.core.tables import DESK

if TYPE_CHECKING:
    from polybus.core.tables import Tables


def revive(bus: Tables, letter: DeadLetter, now: float) -> tuple[Request | None, str]:
    """The job, which goes on as soon as it is written down; or None and the reason why it stays dead."""
    entry = letter.job
    is_desks = (entry.link, entry.identity) == (bus.link_names[DESK[0]], DESK[1])
    job_id = entry.request_id if is_desks else entry.token
    if entry.token in bus.patient or isinstance(bus.desk.known.get(job_id), Request) or job_id in bus.groups:
        return None, "it was sent again and has not ended yet"
    if bus.store_trouble:
        return None, f"{Reason.STORE_UNAVAILABLE}: {bus.store_trouble}"
    size = body_size(entry.body)
    service, (reason, detail) = admit(bus, bus.desk, entry.service, b"", size)
    if service is None:
        return None, f"{reason}: {detail}"
    options = structs.replace(entry.options, guarantee=True)
    # What was too late once is not asked to be in time again.
    request = new_request(
        entry.token, job_id, bus.desk, None, service, list(entry.body), size, options, now, inf
    )
    mark = Attempt(0, bus.wall_at(now), "", REVIVED, "an operator queued it again")
    request.history = (*entry.history, mark)
    bus.desk.known[job_id] = request
    member_revived(bus, options.group)
    bus.desk.unanswered += 1
    bus.patient[request.token] = request
    bus.held_bytes += size
    bus.counters.accepted += 1
    service.accepted += 1
    bus.observe_request("accepted", request, now, reason=REVIVED)
    note_accepted(bus, request, receipt=False)
    return request, ""
