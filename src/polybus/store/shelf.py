"""One table as the store knows it while it runs: where each entry is, and what a transaction does to it.

The database has no index.  The core holds every job and outcome in memory anyway, so the store keeps one
number for each: the row's and its checksum.  That saves an index on disk, a look-up before each delete, and
a second thing that could be damaged.

Lines are folded first: what a transaction puts and then removes is never written.
"""

from __future__ import annotations

from typing import Any, Final

from polybus.store.codec import CODECS, Codec, checksum

CHECKSUM_BITS: Final = 32
_CHECKSUM: Final = (1 << CHECKSUM_BITS) - 1


class Shelf:
    __slots__ = ("_codec", "_gone", "_last", "_new", "_next", "_wrote", "count", "name", "places", "total")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._codec: Final[Codec] = CODECS[name]
        # key → row number and checksum, in one integer: no object more for the collector to look at.
        self.places: dict[Any, int] = {}
        # How many rows there are; the sum of their checksums; the highest row number given out.
        self.count = 0
        self.total = 0
        self._last = 0
        # What the transaction puts and removes; where it puts it; and the three numbers after it.
        self._new: dict[Any, Any] = {}
        self._gone: dict[Any, int] = {}
        self._wrote: dict[Any, int] = {}
        self._next: tuple[int, int, int] | None = None

    # -- what a transaction does ---------------------------------------------------------------

    def put(self, key: Any, entry: Any) -> None:
        """Keep an entry, or the bytes that one is packed as."""
        self._new[key] = entry

    def remove(self, key: Any) -> None:
        if self._new and key in self._new:
            del self._new[key]
        if self.places:
            place = self.places.get(key)
            if place is not None:
                self._gone[key] = place

    def holds(self, key: Any) -> bool:
        return key in self._new or (key in self.places and key not in self._gone)

    @property
    def size(self) -> int:
        """How many entries there will be."""
        return (
            self.count
            - len(self._gone)
            + sum(key not in self.places or key in self._gone for key in self._new)
        )

    def oldest(self) -> Any:
        """The key of the first entry that will be there."""
        kept = (key for key in self.places if key not in self._gone)
        return next(kept, None) or next(iter(self._new))

    @property
    def is_changed(self) -> bool:
        return bool(self._new or self._gone)

    def changes(self) -> tuple[list[int], list[Any]]:
        """Numbers of rows to delete, and rows to put: number, payload, checksum, one after the other.

        Payloads are bytearrays, because sqlite3 first asks whether bytes want to be something else."""
        places, gone, wrote = self.places, self._gone, self._wrote
        tag, pack = self._codec.tag, self._codec.pack
        deleted: list[int] = []
        more = 0
        for place in gone.values():
            deleted.append(place >> CHECKSUM_BITS)
            crc = place & _CHECKSUM
            more -= crc
        rows: list[Any] = []
        last, replaced = self._last, 0
        for key, entry in self._new.items():
            place = places.get(key, 0)
            if place and key not in gone:
                number = place >> CHECKSUM_BITS
                crc = place & _CHECKSUM
                more -= crc
                replaced += 1
            else:
                number = last = last + 1
            payload = entry if type(entry) is bytes else pack(entry)
            crc = checksum(tag, number, payload)
            more += crc
            wrote[key] = number << CHECKSUM_BITS | crc
            rows += (number, bytearray(payload), crc)
        self._next = self.count - len(gone) - replaced + len(wrote), self.total + more, last
        return deleted, rows

    @property
    def sums(self) -> tuple[int, int]:
        """Count and sum of checksums, as they are after the transaction once `changes` was called."""
        return (self.count, self.total) if self._next is None else self._next[:2]

    def settle(self) -> None:
        """The transaction is on disk."""
        if self._next is not None:
            self.count, self.total, self._last = self._next
        places = self.places
        for key in self._gone:
            del places[key]
        places.update(self._wrote)
        self.forget()

    def forget(self) -> None:
        """The transaction is settled, or came to nothing."""
        self._new.clear()
        self._gone.clear()
        self._wrote.clear()
        self._next = None

    # -- what is on disk -----------------------------------------------------------------------

    def take(self, number: int, payload: bytes, crc: int) -> Any:
        """Take a row that was read on opening. Raises ValueError if it is not as it was written."""
        if checksum(self._codec.tag, number, payload) != crc:
            raise ValueError("its checksum is wrong")
        entry = self._codec.unpack(payload)
        self.places[self._codec.key(entry)] = number << CHECKSUM_BITS | crc
        self._last = max(self._last, number)
        self.count += 1
        self.total += crc
        return entry
