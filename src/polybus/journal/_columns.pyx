# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Records → columns, compiled: the buffers that Arrow arrays are made of, filled without an object for each value.

`columns.split` is the same in plain Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from polybus.errors import JournalDamaged

cdef enum:
    HEAD = 48
    FIXED = 11
    SHORT = 6
    LONG = 2
    TEXTS = 8  # SHORT + LONG
    WORKER = 4
    TAIL = 17
    FLAG_BODY = 1
    FLAG_DISPATCHED = 2
    DISPATCHED = 2


cdef inline Py_ssize_t _u16(const char *at) noexcept:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline Py_ssize_t _u32(const char *at) noexcept:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline bint _is_plain(const char *at, Py_ssize_t size) noexcept:
    """Whether these are printable characters of ASCII."""
    cdef Py_ssize_t i
    cdef uint8_t odd = 0
    for i in range(size):
        odd |= <uint8_t> (<uint8_t> at[i] - 0x20) > 0x5E
    return odd == 0


def split(bytes payload, Py_ssize_t count):
    """The columns of so many records: fixed ones as buffers, texts as offsets and bytes, and bodies as offsets of
    lists, whether there is one, offsets of frames, and bytes; and of which texts all are plain ASCII."""
    cdef const char *data = PyBytes_AS_STRING(payload)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(payload), at = 0, end, row = 0, i, j, size, frames = 0, n_frames
    cdef Py_ssize_t sizes[TEXTS]
    cdef Py_ssize_t body_bytes = 0
    cdef int flags
    for i in range(TEXTS):
        sizes[i] = 0
    # First how much there is of everything, and whether it holds together.
    while at < length:
        if at + HEAD > length:
            raise JournalDamaged(f"a record at byte {at} is cut off")
        end = at + 4 + _u32(data + at)
        flags = data[at + 7]
        if end > length or end < at + HEAD:
            raise JournalDamaged(f"a record at byte {at} is longer than its batch")
        i = at + HEAD
        for j in range(TEXTS):
            if i + (2 if j < SHORT else 4) > end:
                raise JournalDamaged(f"a record at byte {at} is cut off")
            if j < SHORT:
                size = _u16(data + i)
                i += 2 + size
            else:
                size = _u32(data + i)
                i += 4 + size
            sizes[j] += size
        if flags & FLAG_BODY:
            if i + 2 > end:
                raise JournalDamaged(f"a record at byte {at} is cut off")
            n_frames = _u16(data + i)
            i += 2
            frames += n_frames
            for j in range(n_frames):
                if i + 4 > end:
                    raise JournalDamaged(f"a record at byte {at} is cut off")
                size = _u32(data + i)
                i += 4 + size
                body_bytes += size
        if flags & FLAG_DISPATCHED:
            if i + TAIL > end:
                raise JournalDamaged(f"a record at byte {at} is cut off")
            size = _u16(data + i + TAIL - 2)
            i += TAIL + size
            # The second row has the same names, and a worker.
            sizes[WORKER] += size
            size = at + HEAD
            for j in range(WORKER):
                sizes[j] += _u16(data + size)
                size += 2 + _u16(data + size)
            row += 1
        if i != end:
            raise JournalDamaged(f"a record that should end at byte {end} ends at {i}")
        row += 1
        at = end
    if row != count:
        raise JournalDamaged(f"a batch that says that it has {count} records has {row}")
    if max(body_bytes, max([sizes[i] for i in range(TEXTS)])) > 0x7FFFFFFF:
        raise JournalDamaged("too much for one table; read fewer batches at a time")
    # Then all of it.
    cdef list widths = [1, 1, 1, 8, 8, 8, 4, 4, 4, 2, 2]
    cdef list fixed = [PyBytes_FromStringAndSize(NULL, count * width) for width in widths]
    cdef char *into[FIXED]
    cdef list offsets = [PyBytes_FromStringAndSize(NULL, (count + 1) * 4) for _ in range(TEXTS)]
    cdef list texts = [PyBytes_FromStringAndSize(NULL, sizes[i]) for i in range(TEXTS)]
    cdef int32_t *text_offsets[TEXTS]
    cdef char *text_data[TEXTS]
    cdef int32_t filled[TEXTS]
    cdef bytes plain = b"\x01" * TEXTS
    cdef char *is_plain = PyBytes_AS_STRING(plain)
    cdef bytes list_offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
    cdef bytes has_body = PyBytes_FromStringAndSize(NULL, count)
    cdef bytes frame_offsets = PyBytes_FromStringAndSize(NULL, (frames + 1) * 4)
    cdef bytes bodies = PyBytes_FromStringAndSize(NULL, body_bytes)
    cdef int32_t *lists = <int32_t *> PyBytes_AS_STRING(list_offsets)
    cdef int32_t *frame_at = <int32_t *> PyBytes_AS_STRING(frame_offsets)
    cdef char *body_data = PyBytes_AS_STRING(bodies)
    cdef char *has = PyBytes_AS_STRING(has_body)
    cdef int32_t frame = 0, body_filled = 0
    for i in range(FIXED):
        into[i] = PyBytes_AS_STRING(fixed[i])
    for i in range(TEXTS):
        text_offsets[i] = <int32_t *> PyBytes_AS_STRING(offsets[i])
        text_data[i] = PyBytes_AS_STRING(texts[i])
        text_offsets[i][0] = 0
        filled[i] = 0
    lists[0] = 0
    frame_at[0] = 0
    at = 0
    row = 0
    while row < count:
        into[0][row] = data[at + 4]
        into[1][row] = data[at + 5]
        into[2][row] = data[at + 6]
        memcpy(into[3] + row * 8, data + at + 8, 8)
        memcpy(into[4] + row * 8, data + at + 16, 8)
        memcpy(into[5] + row * 8, data + at + 24, 8)
        memcpy(into[6] + row * 4, data + at + 32, 4)
        memcpy(into[7] + row * 4, data + at + 36, 4)
        memcpy(into[8] + row * 4, data + at + 40, 4)
        memcpy(into[9] + row * 2, data + at + 44, 2)
        memcpy(into[10] + row * 2, data + at + 46, 2)
        i = at + HEAD
        for j in range(TEXTS):
            if j < SHORT:
                size = _u16(data + i)
                i += 2
            else:
                size = _u32(data + i)
                i += 4
            memcpy(text_data[j] + filled[j], data + i, size)
            if is_plain[j] and not _is_plain(data + i, size):
                is_plain[j] = 0
            filled[j] += <int32_t> size
            text_offsets[j][row + 1] = filled[j]
            i += size
        flags = data[at + 7]
        has[row] = flags & FLAG_BODY
        if has[row]:
            n_frames = _u16(data + i)
            i += 2
            for j in range(n_frames):
                size = _u32(data + i)
                memcpy(body_data + body_filled, data + i + 4, size)
                body_filled += <int32_t> size
                frame += 1
                frame_at[frame] = body_filled
                i += 4 + size
        lists[row + 1] = frame
        row += 1
        if flags & FLAG_DISPATCHED:
            # The same once more, but for what the tail says.
            into[0][row] = DISPATCHED
            into[1][row] = data[at + 5]
            into[2][row] = data[i + 14]
            memcpy(into[3] + row * 8, data + i, 8)
            memcpy(into[4] + row * 8, data + at + 16, 8)
            memcpy(into[5] + row * 8, data + i, 8)
            memcpy(into[6] + row * 4, data + at + 32, 4)
            memset(into[7] + row * 4, 0, 4)
            memcpy(into[8] + row * 4, data + i + 8, 4)
            memcpy(into[9] + row * 2, data + at + 44, 2)
            memcpy(into[10] + row * 2, data + i + 12, 2)
            for j in range(TEXTS):
                size = 0
                if j < WORKER:
                    # It is what was filled in last.
                    size = text_offsets[j][row] - text_offsets[j][row - 1]
                    memcpy(text_data[j] + filled[j], text_data[j] + text_offsets[j][row - 1], size)
                elif j == WORKER:
                    size = _u16(data + i + TAIL - 2)
                    memcpy(text_data[j] + filled[j], data + i + TAIL, size)
                    if is_plain[j] and not _is_plain(data + i + TAIL, size):
                        is_plain[j] = 0
                filled[j] += <int32_t> size
                text_offsets[j][row + 1] = filled[j]
            has[row] = 0
            lists[row + 1] = frame
            i += TAIL + _u16(data + i + TAIL - 2)
            row += 1
        at = i
    return fixed, offsets, texts, (list_offsets, has_body, frame_offsets, bodies), plain
