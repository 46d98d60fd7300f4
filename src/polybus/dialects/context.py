"""Where requests come from, in the places that the dialects have for it (see `wire.context`).

The core carries what a client said among the options that it does not know (`JobOptions.other`), so a job's
context survives whatever the job does.  A broker that makes spans puts its own into `Request.context`.
"""

from __future__ import annotations

from msgspec import structs

from polybus.core.model import PLAIN_CALL, JobOptions, Request
from polybus.wire.context import NO_CONTEXT, Context, find_context, find_in_id, replace_context


def options_of_id(request_id: bytes) -> JobOptions:
    """What an id says about its request; ids that say anything are long (`SHORTEST_ID`)."""
    context = find_in_id(request_id)
    return JobOptions(other=context) if context else PLAIN_CALL


def context_of(request: Request) -> Context:
    """What a worker is to know of where its request comes from."""
    if request.context is not None:
        return request.context
    other = request.options.other
    return find_context(other) if other else NO_CONTEXT


def options_for_ours(request: Request) -> JobOptions:
    """The options of a request as a peer of our own is told them."""
    if request.context is None:
        return request.options
    other = replace_context(request.options.other, request.context)
    return structs.replace(request.options, other=other)


def options_for_others(request: Request) -> JobOptions:
    """The same for a peer that has no idea of it, if its client's dialect has no such header either."""
    other = replace_context(request.options.other, NO_CONTEXT)
    return structs.replace(request.options, other=other)
