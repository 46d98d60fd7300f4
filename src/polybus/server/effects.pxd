# What is done with the actions of a turn, as C calls when it is compiled.

cimport cython
from polybus.core.actions cimport Answer, Deliver
from polybus.core.records cimport Worker
from polybus.dialects.port cimport Voice

cdef class Parcel:
    cdef public list message
    cdef public list delivers

cdef class Outbox:
    cdef public object _bus
    cdef public object _pump
    cdef public list _messages
    cdef public list _sources
    cdef public object pending
    cdef public object dialled
    cdef public set links_without_waiting
    cdef public list subscribers
    cdef public object on_full_subscriber
    cdef public dict refusals
    cdef public dict handlers
    @cython.locals(link=Py_ssize_t, frames=list)
    cpdef hear(self, list batch, list receive, object now, object survive)
    @cython.locals(messages=list, sources=list, handlers=dict, worker=Worker, deliver=Deliver, answer=Answer,
                   voice=Voice, parcels=dict, parcel=Parcel)
    cpdef _add(self, list actions, object now)
