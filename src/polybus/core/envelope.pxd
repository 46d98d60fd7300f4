cdef str _last_name
cdef bytes _last_encoded

cpdef bytes encoded(str name)
cpdef object options_of(object spec, tuple then, bytes group=*)
