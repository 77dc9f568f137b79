"""The checkpoint: the record that travels with every batch. `resuming.py` decides from it where a start continues.

The rule: a checkpoint is written to Kafka together with the records that its position covers, so whoever reads it back
knows exactly which events the broker holds. PostgreSQL is told only positions that were written this way.
"""

import hmac
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from cdcd.core import bounded_json
from cdcd.core.catalog.oids import Oids
from cdcd.core.errors import PositionError, ProtocolError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.position import Position

FORMAT: Final = 2
"""Version of the checkpoint record's JSON; a newer one is refused, never guessed at.

Format 1 has no `serial`, `bindings`, `tables`, `topics` and `tag`. Releases that know format 1 alone refuse format 2,
so that none of them goes on without what these say. A field that format 2 does not have is refused for the same reason.
"""


FORMER_FORMAT: Final = 1
"""The format that is read too, and that `cdcd downgrade` writes."""


BYTES_MAX: Final = 1 << 20
"""Bytes of a record. More is refused unread."""


_TAG: Final = b',"tag":"'


_TAG_BYTES: Final = len(_TAG) + 64 + len(b'"}')


_FIELDS: Final = frozenset(
    {
        "format", "system_identifier", "timeline", "commit_lsn", "end_lsn", "events_done", "records", "flushed_lsn",
        "stream", "epoch", "snapshot", "seal", "settings", "serial", "downgraded", "bindings", "tables", "topics",
        "tag",
    }
)  # fmt: skip


class NewerFormatError(PositionError):
    """The record is a checkpoint of a newer version of cdcd.

    Attributes:
        authentic: its tag was made with the pipeline's key.
    """

    def __init__(self, message: str, *, authentic: bool) -> None:
        super().__init__(message, hint="Run the cdcd version that wrote it, or a newer one.")
        self.authentic = authentic


RecordSettings = tuple[tuple[str, int], ...]
"""Checksums of the settings that decide how rows become records, by name (`engine/record_settings.py`)."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Ends a pipeline's delivery from one server, so that another server can take its place (`cdcd handover`).

    Attributes:
        fence_lsn: where the WAL of the former server ends for Kafka. Kafka holds all that commits up to there.
        system_identifier: the server that takes over.
        slot_lsn: where the pipeline's slot on that server begins.
        origin: the replication origin under which that server applies the changes of the former one.
        tables: a checksum of the tables that are published there (`tables_sum`).
        token: of the handover; it is in the logical message that was the fence, too.
    """

    fence_lsn: int
    system_identifier: str
    slot_lsn: int
    origin: str
    tables: int
    token: str

    def to_json(self) -> dict[str, object]:
        """For the checkpoint record."""
        return {
            "fence_lsn": str(Lsn(self.fence_lsn)),
            "system_identifier": self.system_identifier,
            "slot_lsn": str(Lsn(self.slot_lsn)),
            "origin": self.origin,
            "tables": self.tables,
            "token": self.token,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError or ProtocolError if it is not what `to_json` writes."""
        return cls(
            fence_lsn=Lsn.parse(fields["fence_lsn"]),
            system_identifier=bounded_json.text(fields["system_identifier"]),
            slot_lsn=Lsn.parse(fields["slot_lsn"]),
            origin=bounded_json.text(fields["origin"]),
            tables=bounded_json.count(fields["tables"]),
            token=bounded_json.text(fields["token"]),
        )


def tables_sum(tables: Mapping[int, str]) -> int:
    """A checksum of tables, by oid."""
    return zlib.crc32(json.dumps(sorted(tables.items())).encode())


@dataclass(frozen=True, slots=True)
class AsideTable:
    """A table that is set aside: its changes are left out from a place on.

    Attributes:
        oid: which table.
        since_lsn: the commit LSN from which its changes are left out.
        fault: the kind of fault, as one word.
    """

    oid: int
    since_lsn: int
    fault: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position, and of which server and stream it is one.

    `system_identifier` and `timeline` are `IDENTIFY_SYSTEM`'s (manual, "Streaming Replication Protocol").
    `stream` names the options that decide which events a transaction consists of: a count of events taken
    under other options would be off. `flushed_lsn` is the furthest that PostgreSQL may have been told while this is
    the newest checkpoint: before the oldest PREPARE that was undecided, however far `position` is.
    `epoch` counts the writers where Kafka does not fence them (at least once): of two checkpoints, that of the later
    epoch is right, whichever was written last.
    `snapshot` is how far the reading of tables has got, None where none was asked for.
    `seal`: nothing more is delivered, because another server takes over; None: it is delivered as ever.
    `settings`: those by which rows became records last; None: an earlier version of cdcd wrote the checkpoint.
    `bindings`: which columns the rules of protection are bound to, as the text of a JSON object; "": none.
    `tables`: those that are set aside. `topics`: those that rows of outbox tables have made.

    Of the record that was read, and not of the position:
    `serial` rises with every record of the pipeline (`checkpoint_record.py`); 0: the record has format 1.
    `downgraded`: records of format 1 behind this one count, because `cdcd downgrade` wrote it.
    `authentic`: the record's tag was made with the pipeline's key, so nobody else wrote what it says.
    """

    system_identifier: str
    timeline: int
    stream: str
    position: Position
    flushed_lsn: int
    epoch: int = 0
    snapshot: Progress | None = None
    seal: Seal | None = None
    settings: RecordSettings | None = None
    bindings: str = ""
    tables: tuple[AsideTable, ...] = ()
    topics: tuple[str, ...] = ()
    serial: int = field(default=0, compare=False)
    downgraded: bool = field(default=False, compare=False)
    authentic: bool = field(default=False, compare=False)

    def moved(self, position: Position, flushed: int) -> "Checkpoint":
        """The next one of the same stream; `flushed` is what PostgreSQL may be told once it is the newest."""
        return replace(self, position=position, flushed_lsn=max(self.flushed_lsn, flushed))

    def is_same(self, other: "Checkpoint") -> bool:
        """Whether both are the same record: memory has more of the progress of snapshots than the record keeps."""
        return replace(self, serial=0).encode() == replace(other, serial=0).encode()

    def encode(self, key: bytes = b"", pipeline: str = "", *, version: int = FORMAT) -> bytes:
        """The record's value: JSON with LSNs in PostgreSQL's notation, so that a person can read the topic.

        Args:
            key: with it, the last field is a tag of all that stands before it (HMAC-SHA-256).
            pipeline: the record's key in the topic, which the tag is of, too.
            version: format 1 has no place for what only format 2 has, and no tag.
        """
        position = self.position
        fields: dict[str, object] = {
            "format": version,
            "system_identifier": self.system_identifier,
            "timeline": self.timeline,
            "commit_lsn": str(Lsn(position.commit_lsn)),
            "end_lsn": str(Lsn(position.end_lsn)),
            "events_done": position.events_done,
            "flushed_lsn": str(Lsn(self.flushed_lsn)),
            "stream": self.stream,
            "epoch": self.epoch,
        }
        if position.counts:
            fields["records"] = dict(position.counts)
        if self.snapshot is not None:
            fields["snapshot"] = self.snapshot.to_json()
        if self.seal is not None:
            fields["seal"] = self.seal.to_json()
        if self.settings is not None:
            fields["settings"] = dict(self.settings)
        bindings = ""
        if version == FORMAT:
            if self.serial:
                fields["serial"] = self.serial
            if self.downgraded:
                fields["downgraded"] = True
            if self.tables:
                fields["tables"] = _asides_json(self.tables)
            if self.topics:
                fields["topics"] = self.topics
            if self.bindings:
                # It is JSON already. It may be long, and most records only repeat it.
                bindings = f',"bindings":{self.bindings}'
        # Names as they are: escaped, those of strangers' requests would take up to six times the room.
        body = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[:-1] + bindings + "}"
        record = body.encode()
        if not key or version != FORMAT:
            return record
        return record[:-1] + _TAG + _tag(record, key, pipeline) + b'"}'

    @classmethod
    def decode(cls, data: bytes, where: str, keys: Sequence[bytes] = (), pipeline: str = "") -> "Checkpoint":
        """Read a record's value back; `where` (topic and offset) goes into the error.

        Args:
            keys: the record is authentic if its tag was made with one of them.
            pipeline: the record's key in the topic.

        Raises:
            NewerFormatError: a newer version of cdcd wrote it.
            PositionError: the record is not one of ours.
        """
        try:
            fields = bounded_json.fields(bounded_json.parse(data, BYTES_MAX))
            version = bounded_json.count(fields["format"])
            authentic = version >= FORMAT and _is_authentic(data, keys, pipeline)
            if version not in (FORMER_FORMAT, FORMAT):
                # Every format has these, and its tag at the end.
                bounded_json.text(fields["system_identifier"])
                Lsn.parse(bounded_json.text(fields["end_lsn"]))
                raise NewerFormatError(
                    f"The checkpoint in {where} has format {version}, this cdcd reads {FORMAT} and {FORMER_FORMAT}.",
                    authentic=authentic,
                )
            if version == FORMAT:
                bounded_json.fields(fields, _FIELDS)
            return cls._read(fields, authentic=authentic)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, ProtocolError) as error:
            raise PositionError(
                f"The checkpoint in {where} cannot be read: {_why(error)}.",
                hint="Something else wrote to the checkpoint topic; name another one in topics.checkpoint.",
            ) from error

    @classmethod
    def _read(cls, fields: Mapping[str, Any], *, authentic: bool) -> "Checkpoint":
        count, text = bounded_json.count, bounded_json.text
        records = bounded_json.fields(fields.get("records", {}))
        snapshot, seal, settings = fields.get("snapshot"), fields.get("seal"), fields.get("settings")
        is_new = fields["format"] == FORMAT
        bindings = fields.get("bindings") if is_new else None
        return cls(
            system_identifier=text(fields["system_identifier"]),
            timeline=count(fields["timeline"]),
            stream=text(fields["stream"]),
            position=Position(
                commit_lsn=Lsn.parse(text(fields["commit_lsn"])),
                end_lsn=Lsn.parse(text(fields["end_lsn"])),
                events_done=count(fields["events_done"]),
                counts=tuple([(table, count(number)) for table, number in records.items()]),
            ),
            flushed_lsn=Lsn.parse(text(fields["flushed_lsn"])),
            epoch=count(fields["epoch"]),
            snapshot=None if snapshot is None else Progress.from_json(bounded_json.fields(snapshot)),
            seal=None if seal is None else Seal.from_json(bounded_json.fields(seal)),
            settings=None
            if settings is None
            else tuple([(name, count(sum_)) for name, sum_ in bounded_json.fields(settings).items()]),
            bindings="" if bindings is None else compact(bounded_json.fields(bindings)),
            tables=_asides(bounded_json.items(fields.get("tables", []))) if is_new else (),
            topics=tuple([text(each) for each in bounded_json.items(fields.get("topics", []))])
            if is_new
            else (),
            serial=count(fields.get("serial", 0)) if is_new else 0,
            downgraded=is_new and fields.get("downgraded") is True,
            authentic=authentic,
        )


def _why(error: Exception) -> str:
    """Return why a record is no checkpoint, for a message."""
    match error:
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case json.JSONDecodeError():
            return f"it is not JSON ({error})"
        case KeyError(args=(name,)):
            return f"it has no field {name!r}"
        case TypeError() | AttributeError() | IndexError():
            return "a field has another type than in a checkpoint"
        case _:
            return str(error)[:200]


def compact(value: object) -> str:
    """The text of JSON as the checkpoint has it: `Checkpoint.bindings` is compared as a text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


STEPS_MAX: Final = 2_000
"""Maximum number of LSNs and faults of tables that are set aside, about 100 kB. Somebody who may create tables can
have them set aside one by one, and the record must not exceed what Kafka takes."""

KINDS_MAX: Final = 16
"""More than the kinds of faults (`fates.py`)."""


def _asides_json(tables: Sequence[AsideTable]) -> list[list[str]]:
    """LSN, fault and oids of the tables that have both in common: tables that fail together are one step.

    If there are more than `STEPS_MAX` steps, the oldest ones of a fault become one step with the first one's LSN.
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for each in tables:
        groups.setdefault((each.since_lsn, each.fault), []).append(each.oid)
    if len(groups) > STEPS_MAX:
        firsts: dict[str, int] = {}
        for lsn, fault in sorted(groups)[: KINDS_MAX - STEPS_MAX]:
            first = firsts.setdefault(fault, lsn)
            if lsn != first:
                groups[first, fault] += groups.pop((lsn, fault))
    return [[str(Lsn(lsn)), fault, Oids(oids).text()] for (lsn, fault), oids in sorted(groups.items())]


def _asides(groups: Sequence[object]) -> tuple[AsideTable, ...]:
    """Read back what `_asides_json` wrote. ValueError, IndexError, TypeError: it is something else."""
    found: list[AsideTable] = []
    for group in groups:
        lsn, fault, oids = map(bounded_json.text, bounded_json.items(group))
        found += [AsideTable(oid, Lsn.parse(lsn), fault) for oid in Oids.parse(oids).oids]
    return tuple(sorted(found, key=_oid_of))


def also_aside(tables: Iterable[AsideTable], added: Iterable[AsideTable]) -> tuple[AsideTable, ...]:
    """Return these tables and `added`, each of them set aside since the earlier of its two places."""
    found = {each.oid: each for each in tables}
    for each in added:
        known = found.get(each.oid)
        if known is None or each.since_lsn < known.since_lsn:
            found[each.oid] = each
    return tuple(sorted(found.values(), key=_oid_of))


def _oid_of(each: AsideTable) -> int:
    return each.oid


def _tag(record: bytes, key: bytes, pipeline: str) -> bytes:
    """What only somebody with the key can write: of this record, as a checkpoint of this pipeline."""
    whose = json.dumps(["cdcd checkpoint", pipeline]).encode()
    return hmac.digest(key, whose + record, "sha256").hex().encode()


def _is_authentic(data: bytes, keys: Sequence[bytes], pipeline: str) -> bool:
    """True if the record ends with a tag that one of the keys gives for all that stands before it."""
    record, tag = data[:-_TAG_BYTES] + b"}", data[-_TAG_BYTES:]
    if not tag.startswith(_TAG) or not tag.endswith(b'"}'):
        return False
    found = tag[len(_TAG) : -2]
    return any(hmac.compare_digest(found, _tag(record, key, pipeline)) for key in keys if key)
