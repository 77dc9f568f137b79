"""The fields of a value in binary form, read one after the other.

ValueError where a field ends after the value, or the value after its last field.
"""


class Fields:
    """Where the reading of one value stands. The caller owes `end` after the last field."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next so many bytes."""
        begin = self._at
        end = begin + size
        if size < 0 or end > len(self._data):
            raise ValueError("a field ends after the value")
        self._at = end
        return self._data[begin:end]

    def integer(self, size: int) -> int:
        """An integer with a sign, of so many bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def unsigned(self, size: int) -> int:
        """An integer without a sign."""
        return int.from_bytes(self.take(size), "big")

    def value(self) -> bytes | None:
        """A length and so many bytes; a length of -1 is NULL."""
        size = self.integer(4)
        return None if size == -1 else self.take(size)

    def string(self) -> str:
        """Wire text up to a zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ValueError("a string has no end")
        text = self.take(end - self._at).decode("latin-1")
        self._at += 1
        return text

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Nothing is left."""
        if self._at != len(self._data):
            raise ValueError("bytes are left over")
