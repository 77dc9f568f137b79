"""The captured streams of this directory: what is in a file, and how it is read and written.

A stream is a gzipped sequence of CopyData payloads, each behind its length as an unsigned 32-bit number, and a
JSON file of the same name that says which server sent it and what it was asked for.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from struct import pack, unpack_from

from cdcd.core.protocol.frames import XLogData, read_frame
from cdcd.core.protocol.messages import Message, StreamStart, StreamStop
from cdcd.core.protocol.reader import read_message

DIRECTORY = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Description:
    """Where a stream comes from; `options` are those of START_REPLICATION, `abort_info` is for the reader."""

    server: str
    server_version_num: int
    options: dict[str, str]
    abort_info: bool


@dataclass(frozen=True, slots=True)
class Golden:
    """One captured stream: `version` is PostgreSQL's major version, `mode` one of capture.MODES."""

    version: int
    mode: str

    @property
    def path(self) -> Path:
        return DIRECTORY / str(self.version) / f"{self.mode}.bin.gz"

    def description(self) -> Description:
        return Description(**json.loads(self.path.with_name(f"{self.mode}.json").read_text()))

    def frames(self) -> list[bytes]:
        """Every CopyData payload, keepalives too, in the order in which they came."""
        data = gzip.decompress(self.path.read_bytes())
        frames = []
        at = 0
        while at < len(data):
            (size,) = unpack_from("!I", data, at)
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return frames

    def payloads(self) -> list[bytes]:
        """The pgoutput messages as bytes."""
        read = map(read_frame, self.frames())
        return [frame.payload for frame in read if isinstance(frame, XLogData)]

    def messages(self) -> Iterator[tuple[bytes, Message]]:
        """The pgoutput messages as bytes and as the reader understands them."""
        abort_info = self.description().abort_info
        in_stream = False
        for payload in self.payloads():
            message = read_message(payload, in_stream=in_stream, abort_info=abort_info)
            in_stream = isinstance(message, StreamStart) or (
                in_stream and not isinstance(message, StreamStop)
            )
            yield payload, message

    def write(self, description: Description, frames: Sequence[bytes]) -> None:
        self.path.parent.mkdir(exist_ok=True)
        data = b"".join([pack("!I", len(frame)) + frame for frame in frames])
        # Without a time in the header, equal streams are equal files.
        self.path.write_bytes(gzip.compress(data, mtime=0))
        text = json.dumps(asdict(description), indent=2)
        self.path.with_name(f"{self.mode}.json").write_text(text + "\n")

    def __str__(self) -> str:
        return f"{self.version}-{self.mode}"


def captured() -> list[Golden]:
    """All streams that are here, by version and mode."""
    paths = sorted(DIRECTORY.glob("*/*.bin.gz"))
    return [Golden(int(path.parent.name), path.name.removesuffix(".bin.gz")) for path in paths]


def value_streams() -> list[Golden]:
    """The streams that a test of values needs, in text and in binary form. The other versions send the same rows in
    these modes, as `tests/unit/test_goldens.py` shows.
    """
    last = max(golden.version for golden in captured())
    return [Golden(last, "v1"), Golden(last, "v1-binary")]
