"""Murmur2, the hash of Kafka's default partitioner (Utils.java, `murmur2` and `toPositive`)."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_BITS: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def positive_murmur2(data: bytes) -> int:
    """Return the hash as a number of 31 bits; its remainder when divided by the number of
    partitions is the partition.
    """
    size: i64 = len(data)
    whole: i64 = size & ~3
    found: i64 = _SEED ^ size
    at: i64 = 0
    part: i64
    while at < whole:
        part = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
        part = (part * _M) & _BITS
        part ^= part >> 24
        part = (part * _M) & _BITS
        found = ((found * _M) & _BITS) ^ part
        at += 4
    if size > whole:
        while size > whole:
            size -= 1
            found ^= data[size] << (8 * (size - whole))
        found = (found * _M) & _BITS
    found ^= found >> 13
    found = (found * _M) & _BITS
    found ^= found >> 15
    return int(found & _POSITIVE)
