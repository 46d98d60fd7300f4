# What every publication passes, as C calls when it is compiled.

cimport cython
from polybus.core.actions cimport Fanout
from polybus.core.last_values cimport LastValues
from polybus.core.tables cimport Tables

cpdef receive(Tables bus, bytes topic, list body, double now)

@cython.locals(counts=dict, action=Fanout, last=LastValues)
cpdef publish(Tables bus, bytes topic, list body, double now, object record=*)
