# Declarations that turn the classes of records.py into C structs when they are compiled.

cimport cython

cdef class Client:
    cdef public tuple address
    cdef public dict known
    cdef public Py_ssize_t unanswered

cdef class Request:
    cdef public bytes token
    cdef public bytes request_id
    cdef public Client client
    cdef public object voice
    cdef public Service service
    cdef public list body
    cdef public Py_ssize_t size
    cdef public object options
    cdef public double accepted_at
    cdef public double expires_at
    cdef public object state
    cdef public Worker worker
    cdef public Py_ssize_t attempt
    cdef public double dispatched_at
    cdef public Py_ssize_t slot
    cdef public bint durable
    cdef public bint is_start_noted
    cdef public object alarm
    cdef public Py_ssize_t failures
    cdef public tuple history
    cdef public tuple context

cdef class Worker:
    cdef public tuple address
    cdef public object voice
    cdef public object heartbeat
    cdef public Py_ssize_t credit
    cdef public bint grants_slots
    cdef public Py_ssize_t free
    cdef public double since
    cdef public double seen_at
    cdef public double spoken_at
    cdef public dict offers
    cdef public dict inflight
    cdef public object state
    cdef public Py_ssize_t done
    cdef public Py_ssize_t missed
    cdef public Py_ssize_t slot
    cdef public Py_ssize_t contested
    cdef public bint is_scheduler
    cdef public object endpoint
    cdef public bint forgets_stopped, obeys_stop, resumes
    cdef public Py_ssize_t owed, owed_slots
    cdef public Py_ssize_t streak

cdef class Service:
    cdef public bytes name
    cdef public FairQueue queue
    cdef public Roster roster
    cdef public Py_ssize_t accepted
    cdef public Py_ssize_t answered
    cdef public Py_ssize_t failed
    cdef public double idle_since
    cdef public object policy
    cdef public bint limited
    cdef public Py_ssize_t running, waiting, slot
    cdef public double allowance, allowance_at

cdef class FairQueue:
    cdef public object _front
    cdef public dict _lanes
    cdef public Py_ssize_t _shells
    cdef public object _turns
    cdef public Py_ssize_t length
    cpdef push(self, Request request)
    cpdef Request pop(self)

cdef class Roster:
    cdef public dict members
    cdef public Worker _sole
    cdef public dict _tiers
    cdef public dict _filed
    cpdef Worker best(self)
    cpdef refile(self, Worker worker)
    cpdef _unfile(self, Worker worker)

@cython.locals(request=Request)
cpdef Request new_request(bytes token, bytes request_id, Client client, object voice, Service service, list body,
                          Py_ssize_t size, object options, double accepted_at, double expires_at)
