cimport cython
from polybus.core.actions cimport Answer
from polybus.core.intake cimport submit
from polybus.dialects.majordomo cimport FamilyWorkerVoice, Majordomo
from polybus.dialects.port cimport Voice
from polybus.wire.mdr cimport split_final, split_request, write_final, write_order

cdef class ClientVoice(Voice):
    cdef public list _lead
    cdef public bytes _tag

cdef class WorkerVoice(FamilyWorkerVoice):
    cdef public bytes _tag

cdef class Mdr(Majordomo):
    pass
