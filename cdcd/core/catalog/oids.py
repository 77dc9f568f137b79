"""Compact lists of oids, and checksums of tables' names, for the checkpoint record."""

import base64
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, Self

_NAME_BITS: Final = 0xFFFF

EXPANDED_MAX: Final = 1 << 21
"""Maximum bytes of a decompressed list: half a million tables. A few bytes can expand to a thousand times as much,
and each oid takes ten times its bytes in memory."""

_OID_MAX: Final = 0xFFFF_FFFF


def name_sum(name: str) -> int:
    """Return 16 bits that distinguish a table's name from other names."""
    return zlib.crc32(name.encode()) & _NAME_BITS


class Oids:
    """A list of oids in ascending order, with its text in the checkpoint record, which is made once.

    `names` are the tables' names at that time, if they are known; the record contains 16 bits of a checksum of
    each.
    """

    __slots__ = ("_at", "_text", "_within", "oids", "sums")

    def __init__(self, oids: Iterable[int], names: Mapping[int, str] | None = None) -> None:
        self.oids = tuple(sorted(set(oids)))
        self.sums = () if names is None else tuple(name_sum(names[oid]) for oid in self.oids)
        self._text = ""
        self._within: tuple[Oids, str] | None = None
        self._at: dict[int, int] | None = None

    @classmethod
    def with_sums(cls, sums: Mapping[int, int]) -> Self:
        """Return the list of the oids in `sums`, with these checksums of names."""
        made = cls(sums)
        made.sums = tuple(sums[oid] for oid in made.oids)
        return made

    def __len__(self) -> int:
        return len(self.oids)

    def __contains__(self, oid: int) -> bool:
        return self._index().get(oid) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Oids) and self.oids == other.oids and self.sums == other.sums

    def __hash__(self) -> int:
        return hash(self.oids)

    def __repr__(self) -> str:
        return f"Oids({list(self.oids)})"

    def without(self, oids: Iterable[int]) -> "Oids":
        """Return the list without these oids and without checksums; the list itself if it contains none of them."""
        gone = {oid for oid in oids if oid in self}
        return Oids(oid for oid in self.oids if oid not in gone) if gone else self

    def sum_of(self, oid: int) -> int | None:
        """Return the checksum of the table's name; None if it is unknown."""
        at = self._index().get(oid)
        return self.sums[at] if at is not None and self.sums else None

    def _index(self) -> dict[int, int]:
        if self._at is None:
            self._at = {oid: index for index, oid in enumerate(self.oids)}
        return self._at

    def text(self) -> str:
        """Return the base85 text of the compressed differences between neighbours, followed by the names' checksums."""
        if not self._text:
            packed = bytearray()
            last = 0
            for oid in self.oids:
                rest = oid - last
                last = oid
                while rest > 0x7F:
                    packed.append(rest & 0x7F | 0x80)
                    rest >>= 7
                packed.append(rest)
            sums = b"".join([each.to_bytes(2, "big") for each in self.sums])
            self._text = squeezed(len(packed).to_bytes(4, "big") + bytes(packed) + sums)
        return self._text

    def text_within(self, all_: "Oids") -> str:
        """Return the text of the oids' indexes in `all_`; "" if `all_` lacks one of them."""
        if self._within is None or self._within[0] is not all_:
            index = all_._index()
            places = [index[oid] for oid in self.oids if oid in index]
            self._within = (all_, Oids(places).text() if len(places) == len(self.oids) else "")
        return self._within[1]

    @classmethod
    def parse_within(cls, text: str, all_: "Oids") -> Self:
        """Read back what `text_within` wrote. ValueError, IndexError: `text` is not such a text."""
        return cls(all_.oids[place] for place in Oids.parse(text).oids)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `text` back; raise ValueError for other text."""
        body = expanded(text)
        size = int.from_bytes(body[:4], "big")
        oids: list[int] = []
        value = shift = last = 0
        for byte in body[4 : 4 + size]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                last += value
                if last > _OID_MAX:
                    raise ValueError("an oid is too large")
                oids.append(last)
                value = shift = 0
            elif shift > 35:
                raise ValueError("an oid is too large")
        found = cls(oids)
        sums = body[4 + size :]
        if len(body) < 4 + size or shift or len(sums) not in (0, 2 * len(oids)):
            raise ValueError("the list of oids is cut off")
        found.sums = tuple(int.from_bytes(sums[at : at + 2], "big") for at in range(0, len(sums), 2))
        return found


def squeezed(body: bytes) -> str:
    return base64.b85encode(zlib.compress(body, 9)).decode("ascii")


def expanded(text: str, bytes_max: int = EXPANDED_MAX) -> bytes:
    """Expand a compressed text. ValueError: `text` is not compressed, or expands to more than `bytes_max` bytes."""
    expanding = zlib.decompressobj()
    try:
        found = expanding.decompress(base64.b85decode(text), bytes_max)
    except zlib.error as error:
        raise ValueError(f"it is not compressed: {error}") from None
    if not expanding.eof or expanding.unused_data:
        raise ValueError(f"the compressed text is cut off, or expands to more than {bytes_max} bytes")
    return found
