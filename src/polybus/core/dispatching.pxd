from polybus.core.actions cimport new_deliver
from polybus.core.records cimport Request, Service, Worker
from polybus.core.tables cimport Tables
cimport cython

cdef dict _DISPATCH

cpdef dispatch(Tables bus, Request request, Worker worker, double now)

@cython.locals(service=Service, still_has_it=bint)
cpdef hand_over(Tables bus, Request request, Worker worker, double now)

@cython.locals(service=Service, worker=Worker)
cpdef place(Tables bus, Request request, double now)

cpdef bint may_start(Tables bus, Service service, double now) except -1

@cython.locals(service=Service, sole=Service, was_free=Py_ssize_t)
cpdef feed(Tables bus, Worker worker, double now)

@cython.locals(best=Service, service=Service, best_weight=Py_ssize_t, mixed=bint)
cpdef Service _heaviest(Tables bus, Worker worker, double now)

@cython.locals(worker=Worker)
cpdef flow(Tables bus, Service service, double now)

@cython.locals(service=Service)
cpdef refile(Worker worker)

cpdef release(Tables bus, Request request, double now)

@cython.locals(worker=Worker, request=Request)
cpdef note_starts(Tables bus, double until=*)

@cython.locals(service=Service)
cpdef _note_start(Tables bus, Request request, Worker worker, Service service, double now)
