# Declarations that turn the classes of tables.py into C structs when they are compiled.

cdef class Counters:
    cdef public Py_ssize_t accepted, answers_lost, cancelled, dispatched, duplicates, expired, failed, invalid
    cdef public Py_ssize_t late, published, rejected, replayed, replied, requeued, workers_lost

cdef class Tables:
    cdef public bytes nonce
    cdef public object limits
    cdef public bint watched
    cdef public object state
    cdef public Py_ssize_t sequence, dialled, held_bytes, replies_bytes
    cdef public Py_ssize_t max_held_bytes, max_body_bytes, max_outstanding, max_replies, max_replies_bytes
    cdef public double request_ttl_s
    cdef public Counters counters
    cdef public dict clients, services, workers, requests, nodes, subscriptions, topic_counts, default_expiries
    cdef public object schedulers, replies, expiries, watches, leases
    cdef public double swept_at
    # Tests put a list of their own here, so it need not be exactly a list.
    cdef public object actions
