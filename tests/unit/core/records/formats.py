"""The format of a stream of records in JSON, for tests of both ways to write rows."""

from cdcd.core.records.debezium_json.encoder import JsonFormat
from cdcd.core.records.stream import RecordStream


def json_of(stream: RecordStream) -> JsonFormat:
    """Return the format of the stream. Its `writes` says whether rows are written into a buffer."""
    assert isinstance(stream.format, JsonFormat)
    return stream.format
