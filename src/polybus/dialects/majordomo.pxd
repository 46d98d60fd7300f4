cimport cython
from polybus.core.intake cimport submit
from polybus.core.requests cimport finish
from polybus.core.tables cimport Tables
from polybus.dialects.crossing cimport read_error
from polybus.dialects.port cimport Voice

cdef class FamilyWorkerVoice(Voice):
    cdef public list _lead, _beat, _disconnect
    cdef public object _ended

cdef class Majordomo:
    cdef public Tables _bus
    cdef public object _heartbeat, _ended
    cdef public tuple client_voices, _worker_voices
    cdef public dict tags
    cpdef _final(self, tuple worker, object voice, bytes token, list body, object now)
