cdef Py_ssize_t _MAX_BODY, _MAX_ID

cpdef tuple split_request(list frames, Py_ssize_t at, dict known)
cpdef tuple split_final(list frames, Py_ssize_t at)
cpdef list write_final(bytes service, bytes request_id, list body, bytes tag=*)
cpdef list address_final(bytes identity, list lead, bytes service, bytes request_id, list body, bytes tag)
cpdef list address_order(bytes identity, list lead, bytes address, bytes request_id, list body, bytes tag)
cpdef list write_order(bytes address, bytes request_id, list body, bytes tag=*)
