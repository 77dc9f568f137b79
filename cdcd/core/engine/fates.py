"""One fate for each table: which tables are set aside, since when and why, and when each of them comes back.

The rule: a fault of one table stops that table, and nothing else. From the event on at which the fault is found, the
events of the table count and have no records (`left_out.py`). So the positions are those of all events, and the other
tables lose nothing. The checkpoint has each table that is set aside, by its oid, because another process must not go on
with a table of which changes are missing.

A table that was dropped, or that left the publication, is not set aside any more as soon as the stream has passed that
place, so that the checkpoint does not keep it for ever.

A table comes back at one place in the stream, between two transactions. There its former rows end by a truncate record,
its rows are read again, and its changes go on. A table that fails while it comes back is set aside again. If the cause
of a fault can pass by itself (`PASSING`), the table comes back after a while, which is longer after each attempt.
Otherwise it comes back by request.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.errors import (
    CdcdError,
    ClaimedError,
    ConfigError,
    SinkError,
    SourceError,
    UndecodableNameError,
    WithheldError,
)
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.tables import TableLeft, TableResumed, TableSetAside
from cdcd.core.pasted import resume_table
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.encoder import Record
from cdcd.core.records.gaps import Aside

NAME: Final = "name"
"""A name: the topic's name is too long or another table's, or a name of the table cannot be decoded."""
TOPIC: Final = "topic"
"""The table's topic is missing, or refused."""
CLAIMED: Final = "claimed"
"""The table's topic belongs to another pipeline."""
REGISTRY: Final = "registry"
"""The schema registry refuses a schema of the table, or gives no answer for it."""
PROTECTION: Final = "protection"
"""It is not certain which columns of the table a rule protects."""
RULE: Final = "rule"
"""A rule of the configuration cannot be followed: a key, a filter, a route, names of fields, partitions."""
VALUE: Final = "value"
"""A value of a row has no form in a record, or the server did not send a part of the key."""
SIZE: Final = "size"
"""A record is larger than Kafka takes."""
SNAPSHOT: Final = "snapshot"
"""The table's rows cannot be read."""
BROKER: Final = "broker"
"""The broker refused a record of the table."""
REQUEST: Final = "request"
"""Somebody asked for it (`cdcd tables stop`)."""

SET_ASIDE: Final = "the table is set aside because of a fault, and is read when it comes back"
"""Why the rows of a table are not read."""

PASSING: Final = frozenset({TOPIC, CLAIMED, REGISTRY, SNAPSHOT, BROKER})
"""Faults whose cause can pass: rights, topics and a registry are in other hands than the configuration."""

RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 600.0
"""Seconds until a table comes back by itself: after the first fault, and the most after further ones."""

RETURNING_MAX: Final = 50
"""Number of tables that come back at one place in the stream. Others follow when these have their rows or have failed
again, so that topics, look-ups and memory have a limit."""

COMING_S: Final = 0.2
"""Seconds until it is looked again whether further tables may come back, if as many as may come at a time do so."""

REASON_MAX: Final = 500
"""Maximum number of characters of a reported reason."""

BELONGS: Final = (ConfigError, SinkError, SourceError)
"""Errors that belong to a table if they are raised for its description or for one of its rows."""


Fault = Callable[[int, str, CdcdError], None]
"""Sets a table aside: its oid, the kind of fault, and the error."""


@dataclass(slots=True)
class Fate:
    """A table that is set aside.

    Attributes:
        oid, since_lsn, fault: as in the checkpoint.
        name: `schema.table`, as the publication was listed last; "" if it is not known. Then the table does not come
            back by itself.
        reason, hint: of the error. A former process has told the reason, so it is "" after a restart.
        tries: how often the table has come back and failed again.
        retry_at: when the table comes back by itself, in monotonic seconds; None: it has no time yet, or comes back by
            request only.
        former: the name before the table was renamed while it is set aside; "" if it was not renamed in this session.
    """

    oid: int
    since_lsn: int
    fault: str
    name: str = ""
    reason: str = ""
    hint: str = ""
    tries: int = 0
    retry_at: float | None = None
    former: str = ""


def fault_of(error: CdcdError) -> str:
    """The kind of fault, of an error that the description of a table met."""
    if isinstance(error, WithheldError):
        return PROTECTION
    if isinstance(error, SinkError | UndecodableNameError):
        return NAME
    return RULE


def fault_of_topic(error: CdcdError) -> str:
    """Return the kind of fault of an error because of which records cannot go to a topic."""
    return CLAIMED if isinstance(error, ClaimedError) else TOPIC


def fault_of_rows(error: CdcdError) -> str:
    """Return the kind of fault of an error that rows of a snapshot met."""
    return SIZE if isinstance(error, SinkError) else VALUE


class Fates:
    """The tables that are set aside.

    Args:
        start: those of the checkpoint.
        names: the published tables as `schema.table`, by oid.
        has_requests: whether requests can arrive. If not, each table of the checkpoint that has a fault comes back
            once in each session.
        fault: sets a table with a fault aside; None: a fault of a table ends the session.
    """

    def __init__(
        self,
        start: Iterable[AsideTable],
        names: Mapping[int, str],
        *,
        observe: Observer,
        has_requests: bool = True,
        fault: Fault | None = None,
    ) -> None:
        self._observe = observe
        self._fault = fault
        self.aside: dict[int, Fate] = {
            each.oid: Fate(each.oid, each.since_lsn, each.fault, names.get(each.oid, "")) for each in start
        }
        faulty = [each.oid for each in self.aside.values() if each.fault != REQUEST]
        self._once: set[int] = set() if has_requests else set(faulty)
        """Tables that come back once by themselves, whatever their fault is."""
        self._tries: dict[int, int] = {}
        """By oid: attempts of tables that came back. Kept until a table has its rows."""
        self._reading: set[int] = set()
        """Tables that came back and have not got their rows yet."""
        self._asked: dict[int, None] = {}
        """Tables that come back at the next place between two transactions, because somebody asked for it."""
        self._relations: dict[int, Relation] = {}
        """By oid: the newest descriptions by the stream of tables that are set aside."""
        self._left: dict[int, int] = {}
        """Tables that are not published any more: the LSN from which on the stream has no change of the table."""
        self._table: tuple[AsideTable, ...] | None = None
        self._earliest: float | None = None
        """When the first table comes back by itself, as of the last `plan`; None: no table does."""
        self._is_planned = False
        """Whether every table has its time, and `_earliest` is the first of them."""

    def __len__(self) -> int:
        return len(self.aside)

    @property
    def sets_aside(self) -> bool:
        """True if a fault of a table sets the table aside; False if it ends the session."""
        return self._fault is not None

    def fault(self, oid: int, fault: str, error: CdcdError) -> None:
        """Set the table aside because of a fault of this kind.

        Raises:
            CdcdError: the configuration sets no table aside, so `error` ends the session.
        """
        if self._fault is None:
            raise error
        self._fault(oid, fault, error)

    def table(self) -> tuple[AsideTable, ...]:
        """The tables that are set aside, for the checkpoint."""
        if self._table is None:
            self._table = tuple(
                [
                    AsideTable(each.oid, each.since_lsn, each.fault)
                    for each in sorted(self.aside.values(), key=_oid_of)
                ]
            )
        return self._table

    def set_aside(
        self, oid: int, name: str, topic: str, *, fault: str, reason: str, hint: str, lsn: int
    ) -> bool:
        """Set a table aside from `lsn` on, and report it. False: it is set aside already, perhaps from an earlier place
        on than before, because records from before its fault were refused.

        Args:
            lsn: the commit LSN from which on changes of the table have no records.
        """
        known = self.aside.get(oid)
        if known is not None:
            if lsn < known.since_lsn:
                known.since_lsn = lsn
                self._table = None
            return False
        tries = self._tries.pop(oid, 0)
        self._reading.discard(oid)
        self.aside[oid] = Fate(oid, lsn, fault, name, cut_short(reason, REASON_MAX), hint, tries)
        self._table = None
        self._is_planned = False
        self._observe(
            TableSetAside(
                table=name,
                oid=oid,
                topic=topic,
                fault=fault,
                lsn=str(Lsn(lsn)),
                reason=cut_short(reason, REASON_MAX),
                hint=hint or HINTS.get(fault, ""),
                command=resume_table(name),
                by_itself=fault in PASSING,
            )
        )
        return True

    def may_have_records(self, oid: int, lsn: int) -> bool:
        """Return whether the table has records that commit behind `lsn`. A table has none behind its fault."""
        fate = self.aside.get(oid)
        return fate is None or fate.since_lsn >= lsn

    def describe(self, relation: Relation) -> None:
        """The stream describes a table that is set aside. The description counts when the table comes back."""
        self._relations[relation.oid] = relation

    def listed(self, names: Mapping[int, str], after: int) -> None:
        """Take the present names of the published tables by oid, because a table may have been renamed or dropped.

        Args:
            after: an LSN behind every commit that the list includes.
        """
        self._left = {oid: self._left.get(oid, after) for oid in self.aside if oid not in names}
        for oid, fate in self.aside.items():
            name = names.get(oid, fate.name)
            if name != fate.name:
                fate.former, fate.name = fate.name, name
                self._is_planned = False

    def left(self, position: int) -> list[int]:
        """Return the tables that had left the publication before this place. The caller owes `let_go` for each."""
        return [oid for oid, after in self._left.items() if after <= position] if self._left else []

    def let_go(self, oid: int, lsn: int) -> Relation | None:
        """The table has left the publication: it is not set aside any more. Returns as `bring_back` does.

        Args:
            lsn: where the stream is.
        """
        self._left.pop(oid)
        fate = self._take_out(oid)
        self._observe(
            TableLeft(table=fate.name or f"oid {oid}", oid=oid, fault=fate.fault, lsn=str(Lsn(lsn)))
        )
        return self._relations.pop(oid, None)

    def _take_out(self, oid: int) -> Fate:
        fate = self.aside.pop(oid)
        self._asked.pop(oid, None)
        self._once.discard(oid)
        self._table = None
        self._is_planned = False
        if not self.aside:
            self._earliest = None
        return fate

    def ask(self, oids: Collection[int]) -> None:
        """Let these tables come back."""
        self._asked.update(dict.fromkeys([oid for oid in oids if oid in self.aside]))

    def plan(self, now: float) -> None:
        """Give each table that comes back by itself a time to come back at.

        The engine calls this for each action, so nothing is done unless the tables that are set aside have changed.
        """
        if self._is_planned:
            return
        for each in self.aside.values():
            if each.retry_at is None and each.name and (each.fault in PASSING or each.oid in self._once):
                each.retry_at = now + min(RETRY_S * 2**each.tries, RETRY_S_MAX)
        times = [each.retry_at for each in self.aside.values() if each.retry_at is not None]
        self._earliest = min(times, default=None)
        self._is_planned = True

    def next_at(self) -> float | None:
        """Return when a table comes back by itself, as of the last `plan`; None: no table does."""
        return self._earliest

    def waits_until(self, now: float) -> float | None:
        """Return when a table comes back by itself, or for a table that is due and waits for others, when to see again
        whether it may come back; None: no table does.
        """
        due_at = self._earliest
        return due_at if due_at is None or due_at > now else now + COMING_S

    def is_due(self, now: float) -> bool:
        """Return whether a table comes back now, by the last `plan` or because somebody asked for it."""
        return bool(self._asked) or (self._earliest is not None and self._earliest <= now)

    def due(self, now: float, coming: int = 0) -> list[int]:
        """The tables that come back now, between two transactions. The caller owes `bring_back` for each of them.

        Args:
            coming: number of tables that came back and have not got their rows yet.
        """
        by_time = [
            each.oid for each in self.aside.values() if each.retry_at is not None and each.retry_at <= now
        ]
        # Each table once, those that somebody asked for first.
        found = list(dict.fromkeys([*self._asked, *by_time]))[: max(0, RETURNING_MAX - coming)]
        for oid in found:
            self._asked.pop(oid, None)
        return found

    def bring_back(self, oid: int, *, read: bool, lsn: int) -> Relation | None:
        """The table comes back here. Returns its newest description by the stream while it was set aside, if any.

        Args:
            read: its rows are read again.
            lsn: where the stream is.
        """
        fate = self._take_out(oid)
        self._tries[oid] = fate.tries + 1
        if read:
            self._reading.add(oid)
        self._observe(
            TableResumed(
                table=fate.name,
                oid=oid,
                fault=fate.fault,
                lsn=str(Lsn(lsn)),
                attempt=fate.tries + 1,
                read=read,
            )
        )
        return self._relations.pop(oid, None)

    @property
    def is_reading(self) -> bool:
        """Whether a table came back and has not got its rows yet, so that `note_rows` has something to do."""
        return bool(self._reading)

    def note_rows(self, being_read: Collection[int]) -> None:
        """Tables that came back, but those `being_read`, have their rows. If one fails once more, its fault is new."""
        for oid in self._reading.difference(being_read):
            self._reading.discard(oid)
            self._tries.pop(oid, None)

    def names(self, wanted: Collection[str]) -> dict[str, int]:
        """The oids of tables that are set aside, by these names."""
        return {each.name: each.oid for each in self.aside.values() if each.name in wanted}

    def renamed(self, name: str) -> str:
        """The present name of a table that had this name and was renamed while it is set aside; "": there is none."""
        return next((each.name for each in self.aside.values() if each.former == name), "")


@dataclass(frozen=True, slots=True)
class AsideNotes:
    """Makes the records of the schemas topic that say which tables are set aside.

    Attributes:
        topic: the schemas topic.
        headers: of each record; they name the pipeline.
    """

    topic: str
    headers: list[tuple[str, bytes]] | None

    def records(
        self,
        before: Iterable[AsideTable],
        after: Iterable[AsideTable],
        names: Callable[[int], str],
        lsn: int,
    ) -> list[Record]:
        """Return a record for each table that differs.

        Args:
            before, after: the tables that are set aside, by the former checkpoint and by the next one.
            names: returns the name of a table by its oid; "" if it is not known.
            lsn: where the next checkpoint is.
        """
        ended = {each.oid: each for each in before}
        found = [
            Aside(each.oid, names(each.oid), each.since_lsn, each.fault)
            for each in after
            if ended.pop(each.oid, None) != each
        ]
        found += [
            Aside(each.oid, names(each.oid), each.since_lsn, each.fault, lsn) for each in ended.values()
        ]
        return [each.record(self.topic, self.headers) for each in found]


HINTS: Final[Mapping[str, str]] = {
    NAME: "Give the table a topic of its own (topics.names).",
    TOPIC: "Create the topic, or give cdcd's principal the right to create it and to write to it.",
    CLAIMED: "Give the table another topic (topics.names), or release the other pipeline's claim on this one.",
    REGISTRY: "Correct the compatibility of the subject, or delete the subject's former versions.",
    PROTECTION: "Correct the rule in columns, so that it names the column.",
    RULE: "Correct the rule in the configuration, and start cdcd again.",
    VALUE: "Correct the row, or give the records another key (key.columns).",
    SIZE: "Raise max.message.bytes of the topic and message.max.bytes in kafka.properties, or set kafka.oversized.",
    SNAPSHOT: "Give cdcd's role, or the reader of the table's owner, SELECT on the table.",
    BROKER: "See the reason, and correct the topic or its rights.",
    REQUEST: "The table was stopped on request.",
}
"""By kind of fault: what a person can do, if the error itself does not say it."""


def _oid_of(each: Fate) -> int:
    return each.oid
