"""Arrays in a binary format, element by element."""

from typing import TYPE_CHECKING

from librt.strings import BytesWriter

from cdcd.core.records.avro.writing import FIRST, SECOND, AvroValueError
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.literals import (
    ArraySink,
    write_array,
    write_binary_array,
)

if TYPE_CHECKING:
    from mypy_extensions import i64


class AvroConverter:
    """Appends values of one column, without the union branch that says whether they are null.

    A malformed value raises ValueError.
    """

    def write(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append the value whose text form is `data[at:end]`."""
        raise NotImplementedError

    def write_binary(self, data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
        """Append the value whose binary form is `data[at:end]`."""
        raise NotImplementedError


class ArrayValue:
    """A large array, whose elements are converted one by one.

    Attributes:
        element: the converter of elements that are not NULL.
        schema: the Connect schema of elements, which is optional.
    """

    def __init__(self, delimiter: int, element: AvroConverter, schema: Schema) -> None:
        self.element = element
        self.schema = schema
        self._delimiter = delimiter
        self._data = b""
        self._at: i64 = 0
        self._end: i64 = 0
        self._is_binary = False

    def set(self, data: bytes, at: "i64", end: "i64", is_binary: bool) -> None:
        """Take `data[at:end]` as the array."""
        self._data, self._at, self._end, self._is_binary = data, at, end, is_binary

    def give(self, sink: ArraySink) -> None:
        """Give the parts of the array to `sink`. ValueError if the array is malformed."""
        if self._is_binary:
            write_binary_array(self._data, self._at, self._end, sink)
        else:
            write_array(self._data, self._at, self._end, self._delimiter, sink)


class OneDimension(ArraySink):
    """Takes an array that has one dimension; UnfitError if there are more."""

    def __init__(self) -> None:
        self._is_open = False

    def open(self) -> None:
        if self._is_open:
            raise AvroValueError("arrays with one dimension")
        self._is_open = True


class ElementCount(OneDimension):
    """Counts elements."""

    def __init__(self) -> None:
        OneDimension.__init__(self)
        self.elements: i64 = 0

    def null(self) -> None:
        self.elements += 1

    def value(self, data: bytes, at: "i64", end: "i64") -> None:
        self.elements += 1

    def binary_value(self, data: bytes, at: "i64", end: "i64") -> None:
        self.elements += 1


class AvroElements(OneDimension):
    """Writes elements, each after the branch of its union."""

    def __init__(self, element: AvroConverter, out: BytesWriter) -> None:
        OneDimension.__init__(self)
        self._element = element
        self._out = out

    def null(self) -> None:
        self._out.append(FIRST)

    def value(self, data: bytes, at: "i64", end: "i64") -> None:
        self._out.append(SECOND)
        self._element.write(data, at, end, self._out)

    def binary_value(self, data: bytes, at: "i64", end: "i64") -> None:
        self._out.append(SECOND)
        self._element.write_binary(data, at, end, self._out)
