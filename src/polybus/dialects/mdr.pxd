cimport cython
from polybus.core.actions cimport Answer
from polybus.core.intake cimport submit
from polybus.core.records cimport Request, Worker
from polybus.dialects.majordomo cimport FamilyWorkerVoice, Majordomo
from polybus.dialects.port cimport Voice
from polybus.wire.mdr cimport address_final, address_order, split_final, split_request

cdef Py_ssize_t _SHORTEST

cdef class ClientVoice(Voice):
    cdef public list _lead
    cdef public bytes _tag
    @cython.locals(reply=Answer, identity=bytes)
    cpdef answer(self, object action)

cdef class WorkerVoice(FamilyWorkerVoice):
    cdef public bytes _tag
    @cython.locals(order=Request, receiver=Worker, token=bytes, identity=bytes)
    cpdef deliver(self, object worker, object request)

cdef class Mdr(Majordomo):
    cdef public tuple _traced_voices
    @cython.locals(parts=tuple, service=bytes, request_id=bytes, body=list, client=tuple)
    cpdef hear_client(self, object link, list frames, Py_ssize_t at, object now)
    @cython.locals(final=tuple, token=bytes, request_id=bytes, body=list, worker=tuple)
    cpdef hear_worker(self, object link, list frames, Py_ssize_t at, object now)
    @cython.locals(request=Request)
    cpdef _check_id(self, bytes token, bytes request_id)
