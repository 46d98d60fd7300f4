# Declarations that turn the classes of tables.py into C structs when they are compiled.

cimport cython
from polybus.core.journal cimport Journal
from polybus.core.records cimport Request

cdef tuple _LOW

cdef class Counters:
    cdef public Py_ssize_t accepted, answers_lost, cancelled, dead, dispatched, duplicates, expired, failed, invalid
    cdef public Py_ssize_t late, published, rejected, replayed, replied, requeued, retried, timeouts, workers_lost

cdef class Tables:
    cdef public bytes nonce, token_block
    cdef public object limits
    cdef public bint watched, tapped, timed
    cdef public Journal journal
    cdef public Py_ssize_t monitored, untimed
    cdef public object state
    cdef public Py_ssize_t sequence, dialled, held_bytes, replies_bytes
    cdef public Py_ssize_t max_held_bytes, max_body_bytes, max_outstanding, max_replies, max_replies_bytes
    cdef public Py_ssize_t max_outcomes, max_outcomes_bytes
    cdef public double request_ttl_s
    cdef public Counters counters
    cdef public dict refusals, clients, services, workers, silent, departed, holders, let_go, resting, prompt, patient, nodes, subscriptions, topic_counts
    cdef public object schedulers, replies, note_reply, expiries, watches, leases, alarms, gates
    cdef public double swept_at
    # Tests put a list of their own here, so it need not be exactly a list.
    cdef public object actions
    cdef public str store_trouble
    cdef public list lines, policies, undone
    cdef public Py_ssize_t batch, written, outcomes_bytes
    cdef public object held, bridging, outcomes, desk, retrying, follow, member_ended, serve, waiters, note_time
    cdef public double wall_offset, outcomes_age_s, starts_at
    cdef public dict link_names, voices, groups, shared_words
    @cython.locals(sequence=Py_ssize_t, low=Py_ssize_t)
    cpdef bytes next_token(self)
    cpdef observe_request(self, str what, Request request, double now, str reason=*, str detail=*, list body=*)
