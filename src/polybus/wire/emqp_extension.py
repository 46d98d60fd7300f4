"""What polybus workers and polybus brokers say to each other in eMQP, and nobody else ever sees.

They find each other out with INFORM and its ACK (`emqp_inform`).  From version 1 on there are CANCEL,
PROGRESS, LEAVE and RETURN; version 2 puts many jobs into one message (ORDERS), many answers into one (DONE),
and many slots (SLOTS), because with short jobs the messages cost more than the work.

    ORDERS  [tag, ORDERS, message id, then for each job: token, queue, headers, body]
    DONE    [tag, DONE, message id, then for each job: token, body]
    SLOTS   [tag, SLOTS, message id, number]

Each answer in a DONE gives the slot of its job back; one in a REPLY does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.emqp_headers import NO_HEADERS, read_headers, write_headers
from polybus.wire.emqp_inform import MAX_HOLDING
from polybus.wire.emqp_messages import (
    TAG,
    Cancel,
    Done,
    Leave,
    Orders,
    Progress,
    Request,
    Return,
    Slots,
)
from polybus.wire.frames import (
    EMPTY,
    MAX_ID_BYTES,
    Frame,
    Frames,
    check_id,
    check_name,
    read_id,
    read_name,
    refuse,
)

ORDERS: Final = b"ORDERS"
DONE: Final = b"DONE"
# So many jobs or answers in a message: most of what a message costs is saved by then, and the other side
# begins with them soon.
MAX_JOINED: Final = 64
# Larger ones go alone. So a message has some 256 KiB at most.
MAX_JOINED_BYTES: Final = 4096
# A worker cannot hold more.
MAX_SLOTS: Final = MAX_HOLDING

_ORDER_FRAMES: Final = 4
_ANSWER_FRAMES: Final = 2
# Frames of a message before its first job or answer.
HEAD_FRAMES: Final = 3
# The frames of a full ORDERS.
FULL_ORDERS: Final = HEAD_FRAMES + MAX_JOINED * _ORDER_FRAMES

M = TypeVar("M")
Readers = Mapping[Frame, Callable[[Frames, int], M]]
FromWorker = Progress | Leave | Return | Done | Slots
ToWorker = Cancel | Orders


# -- reading ----------------------------------------------------------------------------------


def wrong_length(what: str, frames: Frames, at: int, takes: str) -> RemoteProtocolError:
    return refuse("length", f"{what} has {len(frames) - at} frames; it takes {takes}")


def bare(kind: Callable[[bytes], M], word: str) -> Callable[[Frames, int], M]:
    """The reader of a command that has nothing but its message id."""

    def read(frames: Frames, at: int) -> M:
        if len(frames) != at + 3:
            raise wrong_length(word, frames, at, "3")
        return kind(read_id(frames[at + 2], "message id"))

    return read


def _naming(kind: Callable[[bytes, bytes], M], word: str) -> Callable[[Frames, int], M]:
    """The reader of a command that names one request."""

    def read(frames: Frames, at: int) -> M:
        if len(frames) != at + 4:
            raise wrong_length(word, frames, at, "4")
        return kind(read_id(frames[at + 2], "message id"), read_id(frames[at + 3], "original message id"))

    return read


def _read_progress(frames: Frames, at: int) -> Progress:
    if len(frames) != at + 5:
        raise wrong_length("PROGRESS", frames, at, "5")
    msg_id, token = read_id(frames[at + 2], "message id"), read_id(frames[at + 3], "original message id")
    return Progress(msg_id, token, [frames[at + 4]])


def _check_joined(word: str, frames: Frames, at: int, each: int) -> int:
    """Where the first job or answer of a message begins, which has whole ones and not too many."""
    first = at + HEAD_FRAMES
    count, rest = divmod(len(frames) - first, each)
    if rest or not 1 <= count <= MAX_JOINED:
        raise wrong_length(word, frames, at, f"{HEAD_FRAMES}, and {each} for each of 1 to {MAX_JOINED} jobs")
    return first


def _read_orders(frames: Frames, at: int) -> Orders:
    first = _check_joined("ORDERS", frames, at, _ORDER_FRAMES)
    msg_id = read_id(frames[at + 2], "message id")
    jobs: list[Request] = []
    # Jobs that come together are mostly of one kind: what is like the last one is not read again.
    listed: Frame = EMPTY
    headers = NO_HEADERS
    for i in range(first, len(frames), _ORDER_FRAMES):
        frame = frames[i + 2]
        if type(frame) is not bytes or frame != listed:
            listed = frame
            headers = read_headers(listed)
        token = read_id(frames[i], "original message id")
        jobs.append(Request(token, read_name(frames[i + 1], "queue name"), headers, [frames[i + 3]]))
    return Orders(msg_id, jobs)


def _read_done(frames: Frames, at: int) -> Done:
    first = _check_joined("DONE", frames, at, _ANSWER_FRAMES)
    msg_id = read_id(frames[at + 2], "message id")
    answers: list[tuple[bytes, Frame]] = []
    for i in range(first, len(frames), _ANSWER_FRAMES):
        token = frames[i]
        # Looked at here, because a call for each costs more than the look.
        if type(token) is not bytes or not 0 < len(token) <= MAX_ID_BYTES:
            token = read_id(token, "original message id")
        answers.append((token, frames[i + 1]))
    return Done(msg_id, answers)


def _read_slots(frames: Frames, at: int) -> Slots:
    if len(frames) != at + 4:
        raise wrong_length("SLOTS", frames, at, "4")
    msg_id, number = read_id(frames[at + 2], "message id"), frames[at + 3]
    if type(number) is bytes and len(number) <= 6 and number.isdigit() and 1 <= int(number) <= MAX_SLOTS:
        return Slots(msg_id, int(number))
    raise refuse("bad_number", f"SLOTS takes a number from 1 to {MAX_SLOTS}")


READ_FROM_WORKER: Final[Readers[FromWorker]] = {
    b"PROGRESS": _read_progress,
    b"LEAVE": bare(Leave, "LEAVE"),
    b"RETURN": _naming(Return, "RETURN"),
    DONE: _read_done,
    b"SLOTS": _read_slots,
}
READ_AS_WORKER: Final[Readers[ToWorker]] = {
    b"CANCEL": _naming(Cancel, "CANCEL"),
    ORDERS: _read_orders,
}


# -- writing ----------------------------------------------------------------------------------


def write_from_worker(message: FromWorker) -> list[Frame]:
    msg_id = check_id(message.msg_id, "message id")
    match message:
        case Progress(_, token, body):
            return [TAG, b"PROGRESS", msg_id, check_id(token, "original message id"), one_frame(body)]
        case Return(_, token):
            return [TAG, b"RETURN", msg_id, check_id(token, "original message id")]
        case Leave():
            return [TAG, b"LEAVE", msg_id]
        case Done(_, answers):
            return write_done(msg_id, answers)
        case Slots(_, count):
            if not 1 <= count <= MAX_SLOTS:
                raise LocalProtocolError(f"{count} slots; allowed are 1 to {MAX_SLOTS}")
            return [TAG, b"SLOTS", msg_id, b"%d" % count]


def write_done(msg_id: bytes, answers: Sequence[tuple[bytes, Frame]]) -> list[Frame]:
    _check_count(len(answers))
    frames: list[Frame] = [TAG, DONE, msg_id]
    for token, body in answers:
        frames += (check_id(token, "original message id"), body)
    return frames


def write_orders(msg_id: bytes, jobs: Sequence[Request]) -> list[Frame]:
    """All of them at once; the broker adds one to the other (`FULL_ORDERS`)."""
    _check_count(len(jobs))
    frames: list[Frame] = [TAG, ORDERS, check_id(msg_id, "message id")]
    for job in jobs:
        token, queue = check_id(job.msg_id, "original message id"), check_name(job.queue, "queue name")
        frames += (token, queue, write_headers(job.headers), one_frame(job.body))
    return frames


def write_cancel(msg_id: bytes, token: bytes) -> list[Frame]:
    return [TAG, b"CANCEL", msg_id, token]


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_JOINED:
        raise LocalProtocolError(f"{count} jobs in one message; allowed are 1 to {MAX_JOINED}")


def one_frame(body: list[Frame]) -> Frame:
    if len(body) > 1:
        raise LocalProtocolError(f"eMQP carries one body frame, not {len(body)}; join them before sending")
    return body[0] if body else EMPTY
