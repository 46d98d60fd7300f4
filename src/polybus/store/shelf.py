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
    __slots__ = ("_codec", "_gone", "_new", "count", "last", "name", "places", "total", "wrote")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._codec: Final[Codec] = CODECS[name]
        # key → row number and checksum, in one integer: no object more for the collector to look at.
        self.places: dict[Any, int] = {}
        # The highest row number given out; how many rows there are; the sum of their checksums.
        self.last = 0
        self.count = 0
        self.total = 0
        self._new: dict[Any, Any] = {}
        self._gone: dict[Any, int] = {}
        self.wrote: dict[Any, int] = {}

    # -- what a transaction does ---------------------------------------------------------------

    def put(self, key: Any, entry: Any) -> None:
        self._new[key] = entry

    def remove(self, key: Any) -> None:
        self._new.pop(key, None)
        if key in self.places:
            self._gone[key] = self.places[key]

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
        """Numbers of rows to delete, and rows to put: number, payload, checksum, one after the other."""
        codec, places, gone = self._codec, self.places, self._gone
        tag, pack, wrote = codec.tag, codec.pack, self.wrote
        deleted = [place >> CHECKSUM_BITS for place in gone.values()]
        rows: list[Any] = []
        last = self.last
        for key, entry in self._new.items():
            if key in places and key not in gone:
                number = places[key] >> CHECKSUM_BITS
            else:
                number = last = last + 1
            payload = pack(entry)
            crc = checksum(tag, number, payload)
            wrote[key] = number << CHECKSUM_BITS | crc
            rows += (number, payload, crc)
        return deleted, rows

    def sums(self) -> tuple[int, int]:
        """Count and sum of checksums as they are after the transaction; after `changes`."""
        places, gone = self.places, self._gone
        replaced = [places[key] for key in self.wrote if key in places and key not in gone]
        removed = sum(place & _CHECKSUM for place in gone.values()) + sum(p & _CHECKSUM for p in replaced)
        added = sum(place & _CHECKSUM for place in self.wrote.values())
        return self.count - len(gone) - len(replaced) + len(self.wrote), self.total - removed + added

    def settle(self) -> None:
        """The transaction is on disk."""
        self.count, self.total = self.sums()
        places = self.places
        for key in self._gone:
            del places[key]
        places.update(self.wrote)
        if self.wrote:
            self.last = max(self.last, max(self.wrote.values()) >> CHECKSUM_BITS)
        self.forget()

    def forget(self) -> None:
        """The transaction came to nothing."""
        self._new.clear()
        self._gone.clear()
        self.wrote.clear()

    # -- what is on disk -----------------------------------------------------------------------

    def found(self, number: int, payload: bytes, crc: int) -> Any:
        """Take a row that was read on opening. Raises ValueError if it is not as it was written."""
        if checksum(self._codec.tag, number, payload) != crc:
            raise ValueError("its checksum is wrong")
        entry = self._codec.unpack(payload)
        self.places[self._codec.key(entry)] = number << CHECKSUM_BITS | crc
        self.last = max(self.last, number)
        self.count += 1
        self.total += crc
        return entry
