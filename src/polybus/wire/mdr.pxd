cpdef tuple split_request(list frames, Py_ssize_t at)
cpdef tuple split_final(list frames, Py_ssize_t at)
cpdef list write_final(bytes service, bytes request_id, list body, bytes tag=*)
cpdef list write_order(bytes address, bytes request_id, list body, bytes tag=*)
